"""From a plan to tensors, on the host: no row costs Python, only sequences do."""

import numpy as np
import torch
from torch import Tensor

from engine_core.runner.block_copies import split_into_runs
from engine_core.runner.forward_batch import ForwardBatch, PromptLogprobRows
from engine_core.runner.slot_parameters import SlotParameters
from engine_core.step import SchedulerOutput


class InputBuilder:
    """Keeps what the host must remember about slots. ``build`` takes the plans in order, each once."""

    def __init__(
        self, num_slots: int, num_token_ids: int, block_size: int, num_blocks: int, device: torch.device
    ) -> None:
        self._parameters = SlotParameters(num_slots, num_token_ids)
        self._num_prompt_tokens = [0] * num_slots
        self._block_size, self._num_blocks = block_size, num_blocks
        self._device = device

    def build(self, plan: SchedulerOutput) -> ForwardBatch:
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
        return ForwardBatch(
            plan=plan,
            bindings=[(binding, self._i32(binding.token_ids)) for binding in plan.bindings],
            block_table_updates=[(update, self._i32(update.block_ids)) for update in plan.block_table_updates],
            copies=split_into_runs(plan.block_copies, self._num_blocks),
            row_slots=self._tensor(row_slots),
            positions=self._tensor(positions),
            sequence_slots=self._tensor(slots),
            query_start=self._tensor(query_start.astype(np.int32)),
            num_blocks=-(-int((starts + counts).max()) // self._block_size),
            sample_indices=self._tensor(query_start[1:][sampled] - 1),
            sample_entries=sampled,
            sample_rows=self._parameters.rows([scheduled[index] for index in sampled]),
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

    def _tensor(self, values: "np.ndarray[tuple[int, ...], np.dtype[np.generic]]") -> Tensor:
        return torch.from_numpy(values).to(self._device)

    def _i32(self, values: object) -> Tensor:
        return self._tensor(np.array(values, np.int32))
