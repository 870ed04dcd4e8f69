"""A step recorded by the kernels themselves and replayed as one native call, whatever its size.

Inputs are copied to fixed places, sized for the largest step.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from engine_core.runner.forward_batch import StepRows
from engine_core.runner.step_computation import StepComputation, StepInputs
from engine_core.step import NameRange
from kernels.ops import RECORDED_ROWS, AttentionBatch, Count, Program


class RecordedStep:
    """Callable: a step's rows → (hidden f32 [T, hidden], logits f32 [R, V]), valid until the next step."""

    def __init__(self, computation: StepComputation, inputs: StepInputs, program: Program) -> None:
        self._computation, self._inputs = computation, inputs
        self._recorded = self._program = program

    @classmethod
    def record(
        cls, computation: StepComputation, max_rows: int, max_sequences: int, max_blocks: int
    ) -> "RecordedStep | None":
        """None for a backend that runs operations one by one only."""
        device = computation.caches[0].device
        # A recording works on RECORDED_ROWS rows, even where no step may have so many.
        max_rows, max_sampled = max(RECORDED_ROWS, max_rows), max(RECORDED_ROWS, max_sequences)
        inputs = StepInputs(
            input_ids=torch.zeros(max_rows, dtype=torch.int64, device=device),
            attention=AttentionBatch(
                query_start=torch.zeros(max_sequences + 1, dtype=torch.int32, device=device),
                block_tables=torch.zeros((max_sequences, max_blocks), dtype=torch.int32, device=device),
                positions=torch.zeros(max_rows, dtype=torch.int64, device=device),
                kv_slots=torch.zeros(max_rows, dtype=torch.int64, device=device),
            ),
            sample_indices=torch.zeros(max_sampled, dtype=torch.int64, device=device),
        )
        most = {Count.ROWS: max_rows, Count.SEQUENCES: max_sequences, Count.SAMPLED_ROWS: max_sampled}

        def trace(num_rows: int, switch: Callable[[Count], None]) -> tuple[Tensor, ...]:
            attention = inputs.attention
            rows = AttentionBatch(
                query_start=attention.query_start,
                block_tables=attention.block_tables,
                positions=attention.positions[:num_rows],
                kv_slots=attention.kv_slots[:num_rows],
            )
            hidden = computation.forward(inputs.input_ids[:num_rows], rows)
            switch(Count.SAMPLED_ROWS)
            return hidden, computation.logits(hidden, inputs.sample_indices[:num_rows])

        program = computation.model.ops.record(trace, most)
        return None if program is None else cls(computation, inputs, program)

    @property
    def num_done(self) -> int:
        """Operations done over all steps."""
        return self._program.num_done

    def name_ranges(self, name_range: NameRange | None) -> None:
        """Operations run one by one, each in a range, while there is one."""
        self._program = self._recorded if name_range is None else self._recorded.by_operation(name_range)

    def __call__(self, rows: StepRows) -> tuple[Tensor, Tensor]:
        counts = self._copy(self._computation.gather(rows))
        program = self._program
        program(counts)
        hidden, logits = program.outputs
        return hidden[: counts[Count.ROWS]], logits[: counts[Count.SAMPLED_ROWS]]

    def _copy(self, inputs: StepInputs) -> dict[Count, int]:
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
