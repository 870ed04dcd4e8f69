"""Runs one step on one device: gather tokens, forward, logits, sample, store; then read back what was found.

``prepare`` and ``read`` are host work, ``forward`` and ``sample`` run on the device queue, in order. Knows slots,
not sequences.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import torch
from msgspec import structs
from torch import Tensor

from engine_core.device.queue import Device
from engine_core.models.decoder import DecoderModel
from engine_core.runner.block_copies import BlockCopier, CopyPlanner
from engine_core.runner.decode_graphs import DecodeGraphs, block_ladder, default_row_ladder
from engine_core.runner.forward_batch import ForwardBatch, PromptLogprobRows
from engine_core.runner.graph_runner import GraphRunner, GraphSizes
from engine_core.runner.input_builder import InputBuilder
from engine_core.runner.slot_state import SlotState
from engine_core.runner.step_computation import StepComputation
from engine_core.step import ModelRunnerOutput, NameRange, SchedulerOutput, SequenceOutput, StepFailure
from ipc.codec import join_logprobs
from ipc.messages import TokenLogprobs
from kernels.ops import KVLayout, Logprobs, Samples

PROMPT_LOGPROB_ROWS = 64  # logits of a long prompt never exist all at once


@dataclass(frozen=True, slots=True)
class RunnerSizes:
    """How many of what the runner holds."""

    max_num_seqs: int
    max_num_batched_tokens: int
    num_blocks: int
    block_size: int
    max_model_len: int
    num_token_ids: int
    num_host_blocks: int = 0  # of the tier below the device's memory
    graph_rows: tuple[int, ...] | None = None  # sizes of recorded decode steps; None: the default ladder

    @property
    def num_slots(self) -> int:
        """As many as may run, and as many that may be retiring."""
        return 2 * self.max_num_seqs


@dataclass(slots=True)
class ForwardResult:
    """On the device: logits f32 [R, V] of the rows to sample; on the host: prompt log-probabilities by entry."""

    logits: Tensor
    prompt_logprobs: list[tuple[PromptLogprobRows, list[Logprobs]]]


class ModelRunner:
    """The model, its KV cache and its slots on one device."""

    def __init__(self, model: DecoderModel, layout: KVLayout, sizes: RunnerSizes, device: Device) -> None:
        self._model, self._ops, self._device = model, model.ops, device
        self._recorder = recorder = device.graph_recorder()
        num_blocks = sizes.num_blocks + (recorder is not None)
        caches = device.empty((model.num_layers, num_blocks, layout.bytes_per_block))
        self._host = device.empty_on_host((sizes.num_host_blocks, model.num_layers, layout.bytes_per_block))
        self._copier = BlockCopier(caches, self._host, model.ops)
        self._plan_copies = CopyPlanner(model.num_layers, sizes.num_blocks, num_blocks)
        self._slots = SlotState(
            sizes.num_slots,
            sizes.max_model_len,
            layout.block_size,
            device.torch_device,
            spare_block=None if recorder is None else sizes.num_blocks,
        )
        self._builder = InputBuilder(
            sizes.num_slots, sizes.num_token_ids, layout.block_size, self._plan_copies, device.torch_device
        )
        self.vocab_size = model.config.vocab_size
        computation = StepComputation(model, list(caches.unbind()), layout, self._slots)
        max_blocks = self._slots.block_tables.shape[1]
        decode_graphs = None
        if recorder is not None:
            rows = default_row_ladder(sizes.max_num_seqs) if sizes.graph_rows is None else sizes.graph_rows
            decode_graphs = DecodeGraphs(computation, recorder, rows, block_ladder(max_blocks, layout.block_size))
        graph_sizes = GraphSizes(sizes.max_num_batched_tokens, sizes.max_num_seqs, max_blocks)
        self._graph = GraphRunner(computation, graph_sizes, decode_graphs)

    @property
    def num_layers_done(self) -> int:
        """Moves while there is progress; read by another thread."""
        return self._graph.num_done

    def finish_recordings(self) -> None:
        """Steps of sizes that were computed before are recorded, where they are at all."""
        if self._recorder is not None:
            self._recorder.wait()

    def name_ranges(self, name_range: NameRange | None) -> None:
        """See ``engine_core.step.Executor``; for the model's operations."""
        self._graph.name_ranges(name_range)

    def copy_blocks(self, copies: Iterable[tuple[int, int]]) -> None:
        """Device: as a plan's ``block_copies``."""
        stage = self._device.stage()
        runs = self._plan_copies(copies, stage)
        stage.send()
        self._copier(runs)

    def host_block(self, index: int) -> memoryview:
        """The bytes of a block of the host tier, all layers in order; for whoever knows that nothing copies to it."""
        return self._host[index].numpy().data.cast("B")

    def prepare(self, plan: SchedulerOutput) -> ForwardBatch:
        """Host: the step's inputs."""
        return self._builder.build(plan, self._device.stage())

    def forward(self, batch: ForwardBatch) -> ForwardResult:
        """Device: everything up to the logits."""
        batch.stage.send()
        self._slots.apply(batch.bindings, batch.table_entries, self._ops)
        self._copier(batch.copies)
        batch.is_begun = True
        hidden, logits = self._graph(batch.rows)
        prompt_logprobs = [(rows, self._prompt_logprobs(batch, rows, hidden)) for rows in batch.prompt_logprob_rows]
        return ForwardResult(logits, prompt_logprobs)

    def sample(self, batch: ForwardBatch, result: ForwardResult, masks: dict[int, bytes]) -> Samples:
        """Device: draw a token for each sampled row and put it where the next step finds it. What was drawn is on its
        way to the host."""
        rows = batch.sample_rows
        if not batch.sample_entries:
            nothing = torch.zeros(0, dtype=torch.int64)
            return Samples(nothing, nothing.to(torch.bool), None)
        if masks:
            words = -(-self.vocab_size // 32)
            bitmask = np.frombuffer(b"".join(masks.values()), np.int32).reshape(len(masks), words)
            order = {slot: index for index, slot in enumerate(masks)}
            slots = [batch.plan.scheduled[index].slot for index in batch.sample_entries]
            stage = self._device.stage()
            rows = replace(
                rows,
                bitmask=stage.put(bitmask.copy()),
                bitmask_rows=stage.put(np.array([order.get(slot, -1) for slot in slots], np.int64)),
            )
            stage.send()
        samples = self._ops.sample(result.logits, self._slots.tokens, rows)
        self._ops.store_tokens(self._slots.tokens, rows.slots, rows.positions, samples.token_ids)
        to_host = self._device.to_host
        logprobs = None if samples.logprobs is None else self._to_host(samples.logprobs)
        return Samples(to_host(samples.token_ids), to_host(samples.is_valid), logprobs)

    def read(self, batch: ForwardBatch, result: ForwardResult, samples: Samples) -> ModelRunnerOutput:
        """Host: the step's findings as plain values, one for each scheduled entry."""
        outputs = [SequenceOutput() for _ in batch.plan.scheduled]
        token_ids, is_valid = samples.token_ids.tolist(), samples.is_valid.tolist()
        for row, index in enumerate(batch.sample_entries):
            num_logprobs = batch.plan.scheduled[index].num_logprobs
            logprobs = None
            if num_logprobs >= 0 and samples.logprobs is not None and is_valid[row]:
                logprobs = _pack(samples.logprobs, slice(row, row + 1), num_logprobs)
            failure = None if is_valid[row] else StepFailure.CORRUPT_LOGITS
            outputs[index] = SequenceOutput((token_ids[row],), logprobs, failure=failure)
        for rows, tiles in result.prompt_logprobs:
            packed = [_pack(tile, slice(None), rows.num_top) for tile in tiles]
            outputs[rows.entry] = structs.replace(
                outputs[rows.entry], prompt_logprobs=join_logprobs(rows.num_top, packed)
            )
        return ModelRunnerOutput(tuple(outputs))

    def _prompt_logprobs(self, batch: ForwardBatch, rows: PromptLogprobRows, hidden: Tensor) -> list[Logprobs]:
        tiles = []
        for first in range(rows.first, rows.first + rows.count, PROMPT_LOGPROB_ROWS):
            last = min(first + PROMPT_LOGPROB_ROWS, rows.first + rows.count)
            next_ids = self._ops.gather_tokens(
                self._slots.tokens, batch.rows.slots[first:last], batch.rows.positions[first:last] + 1
            )
            logprobs = self._ops.logprobs(self._model.logits(hidden[first:last]), next_ids, rows.num_top)
            tiles.append(self._to_host(logprobs))
        return tiles

    def _to_host(self, logprobs: Logprobs) -> Logprobs:
        to_host = self._device.to_host
        return Logprobs(
            to_host(logprobs.logprobs),
            to_host(logprobs.ranks),
            to_host(logprobs.top_ids),
            to_host(logprobs.top_logprobs),
        )


def _pack(logprobs: Logprobs, rows: slice, num_top: int) -> TokenLogprobs:
    """The rows' log-probabilities as the wire has them, with the ``num_top`` most likely ids."""
    return TokenLogprobs(
        num_top,
        logprobs.logprobs[rows].numpy().astype("<f4").tobytes(),
        logprobs.ranks[rows].numpy().astype("<u4").tobytes(),
        logprobs.top_ids[rows, :num_top].numpy().astype("<u4").tobytes(),
        logprobs.top_logprobs[rows, :num_top].numpy().astype("<f4").tobytes(),
    )
