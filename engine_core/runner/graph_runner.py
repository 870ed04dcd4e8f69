"""A step's forward pass and logits, captured once and replayed as one call: the same seam as a CUDA graph.

Inputs are copied to fixed places, sized for the largest step; a backend that cannot record runs the operations one
by one. Knows tensors and counts, nothing of slots.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from engine_core.models.decoder import DecoderModel
from engine_core.step import NameRange
from kernels.ops import RECORDED_ROWS, AttentionBatch, Count, KVLayout, Program


@dataclass(frozen=True, slots=True)
class GraphSizes:
    """The largest step: rows, sequences (as many rows may be sampled), and blocks of one sequence."""

    max_rows: int
    max_sequences: int
    max_blocks: int


@dataclass(frozen=True, slots=True)
class GraphInputs:
    """One step: ids i64 [T], its rows' attention, and which rows are sampled, i64 [R]."""

    input_ids: Tensor
    attention: AttentionBatch
    sample_indices: Tensor


class GraphRunner:
    """Callable: a step's inputs → (hidden f32 [T, hidden], logits f32 [R, V]), valid until the next step."""

    def __init__(self, model: DecoderModel, caches: list[Tensor], layout: KVLayout, sizes: GraphSizes) -> None:
        self._model, self._caches, self._layout = model, caches, layout
        self._num_eager = 0
        device = caches[0].device
        # A recording works on RECORDED_ROWS rows, even where no step may have so many.
        max_rows, max_sampled = max(RECORDED_ROWS, sizes.max_rows), max(RECORDED_ROWS, sizes.max_sequences)
        self._inputs = GraphInputs(
            input_ids=torch.zeros(max_rows, dtype=torch.int64, device=device),
            attention=AttentionBatch(
                query_start=torch.zeros(sizes.max_sequences + 1, dtype=torch.int32, device=device),
                block_tables=torch.zeros((sizes.max_sequences, sizes.max_blocks), dtype=torch.int32, device=device),
                positions=torch.zeros(max_rows, dtype=torch.int64, device=device),
                kv_slots=torch.zeros(max_rows, dtype=torch.int64, device=device),
            ),
            sample_indices=torch.zeros(max_sampled, dtype=torch.int64, device=device),
        )
        most = {
            Count.ROWS: max_rows,
            Count.SEQUENCES: sizes.max_sequences,
            Count.SAMPLED_ROWS: max_sampled,
        }
        self._recorded: Program | None = model.ops.record(self._trace, most)
        self._program = self._recorded

    @property
    def num_done(self) -> int:
        """Moves while a step makes progress; read by another thread."""
        return self._num_eager if self._program is None else self._program.num_done

    def name_ranges(self, name_range: NameRange | None) -> None:
        """See ``engine_core.step.Executor``. What runs operations one by one shows them anyway."""
        if self._recorded is not None:
            self._program = self._recorded if name_range is None else self._recorded.by_operation(name_range)

    def __call__(self, inputs: GraphInputs) -> tuple[Tensor, Tensor]:
        if self._program is None:
            hidden = self._forward(inputs.input_ids, inputs.attention)
            self._num_eager += self._model.num_layers
            return hidden, self._logits(hidden, inputs.sample_indices)
        counts = self._copy(inputs)
        program = self._program
        program(counts)
        hidden, logits = program.outputs
        return hidden[: counts[Count.ROWS]], logits[: counts[Count.SAMPLED_ROWS]]

    def _copy(self, inputs: GraphInputs) -> dict[Count, int]:
        """Put the step where the recording looks for it."""
        num_rows, num_sampled = len(inputs.input_ids), len(inputs.sample_indices)
        source, target = inputs.attention, self._inputs.attention
        num_sequences, num_blocks = source.block_tables.shape
        self._inputs.input_ids[:num_rows] = inputs.input_ids
        self._inputs.sample_indices[:num_sampled] = inputs.sample_indices
        target.positions[:num_rows] = source.positions
        target.kv_slots[:num_rows] = source.kv_slots
        target.query_start[: num_sequences + 1] = source.query_start
        target.block_tables[:num_sequences, :num_blocks] = source.block_tables
        return {Count.ROWS: num_rows, Count.SEQUENCES: num_sequences, Count.SAMPLED_ROWS: num_sampled}

    def _trace(self, num_rows: int, switch: Callable[[Count], None]) -> tuple[Tensor, ...]:
        attention = self._inputs.attention
        rows = AttentionBatch(
            query_start=attention.query_start,
            block_tables=attention.block_tables,
            positions=attention.positions[:num_rows],
            kv_slots=attention.kv_slots[:num_rows],
        )
        hidden = self._forward(self._inputs.input_ids[:num_rows], rows)
        switch(Count.SAMPLED_ROWS)
        return hidden, self._logits(hidden, self._inputs.sample_indices[:num_rows])

    def _forward(self, input_ids: Tensor, attention: AttentionBatch) -> Tensor:
        return self._model.forward(input_ids, attention.positions, self._caches, self._layout, attention)

    def _logits(self, hidden: Tensor, sample_indices: Tensor) -> Tensor:
        if not len(sample_indices):
            return hidden.new_empty((0, self._model.config.vocab_size))
        return self._model.logits(self._model.ops.embed(sample_indices, hidden))
