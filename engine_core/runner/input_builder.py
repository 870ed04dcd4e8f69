"""From a plan to tensors, on the host: no row costs Python, only sequences do."""

from collections.abc import Callable, Iterable
from itertools import chain

import numpy as np
import torch

from engine_core.device.queue import Stage
from engine_core.runner.block_copies import CopyRun
from engine_core.runner.forward_batch import BoundTokens, ForwardBatch, PromptLogprobRows, StepRows, TableEntries
from engine_core.runner.slot_parameters import SlotParameters
from engine_core.step import BlockTableUpdate, SchedulerOutput

PlanCopies = Callable[[Iterable[tuple[int, int]], Stage], list[CopyRun]]


class InputBuilder:
    """Keeps what the host must remember about slots. ``build`` takes the plans in order, each once."""

    def __init__(
        self, num_slots: int, num_token_ids: int, block_size: int, plan_copies: PlanCopies, device: torch.device
    ) -> None:
        self._parameters = SlotParameters(num_slots, num_token_ids, device)
        self._num_prompt_tokens = [0] * num_slots
        self._block_size, self._plan_copies = block_size, plan_copies

    def build(self, plan: SchedulerOutput, stage: Stage) -> ForwardBatch:
        """The step's inputs. Everything is a fresh copy: the plan's sequences may change while the step runs."""
        for binding in plan.bindings:
            self._parameters.bind(binding)
            self._num_prompt_tokens[binding.slot] = binding.num_prompt_tokens
        scheduled = plan.scheduled
        starts = np.array([entry.start for entry in scheduled], np.int64)
        slots = np.array([entry.slot for entry in scheduled], np.int64)
        counts = np.array([entry.num_tokens for entry in scheduled], np.int64)
        query_start = np.zeros(len(scheduled) + 1, np.int64)
        np.cumsum(counts, out=query_start[1:])
        row_slots, positions = slots, starts
        if query_start[-1] > len(scheduled):
            row_slots = np.repeat(slots, counts)
            positions = np.arange(query_start[-1]) + np.repeat(starts - query_start[:-1], counts)
        sampled = [index for index, entry in enumerate(scheduled) if entry.samples]
        sequence_slots = stage.put(slots)
        return ForwardBatch(
            plan=plan,
            stage=stage,
            bindings=[
                BoundTokens(binding.slot, stage.put(np.array(binding.token_ids, np.int32))) for binding in plan.bindings
            ],
            table_entries=_table_entries(plan.block_table_updates, stage) if plan.block_table_updates else None,
            copies=self._plan_copies(plan.block_copies, stage) if plan.block_copies else [],
            rows=StepRows(
                slots=sequence_slots if row_slots is slots else stage.put(row_slots),
                positions=stage.put(positions),
                sequence_slots=sequence_slots,
                query_start=stage.put(query_start.astype(np.int32)),
                sample_indices=stage.put(query_start[1:][sampled] - 1),
                num_blocks=-(-int((starts + counts).max()) // self._block_size),
            ),
            sample_entries=sampled,
            sample_rows=self._parameters.rows([scheduled[index] for index in sampled], stage),
            prompt_logprob_rows=self._prompt_logprob_rows(plan, query_start.tolist()),
        )

    def _prompt_logprob_rows(self, plan: SchedulerOutput, query_start: list[int]) -> list[PromptLogprobRows]:
        """The rows of each chunk whose next token is a prompt token too."""
        rows: list[PromptLogprobRows] = []
        if all(entry.num_prompt_logprobs < 0 for entry in plan.scheduled):
            return rows
        for index, entry in enumerate(plan.scheduled):
            if entry.num_prompt_logprobs >= 0:
                last = min(entry.end, self._num_prompt_tokens[entry.slot] - 1)
                count = max(0, last - entry.start)
                rows.append(PromptLogprobRows(index, query_start[index], count, entry.num_prompt_logprobs))
        return rows


def _table_entries(updates: Iterable[BlockTableUpdate], stage: Stage) -> TableEntries:
    slots = [update.slot for update in updates for _ in update.block_ids]
    indices = chain.from_iterable(range(update.start, update.start + len(update.block_ids)) for update in updates)
    block_ids = chain.from_iterable(update.block_ids for update in updates)
    return TableEntries(*(stage.put(np.array(list(values), np.int64)) for values in (slots, indices, block_ids)))
