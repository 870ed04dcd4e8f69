"""One step's inputs as tensors, built on the host from the plan and read by the device alone."""

from dataclasses import dataclass

from torch import Tensor

from engine_core.runner.block_copies import CopyRun
from engine_core.step import BlockTableUpdate, SchedulerOutput, SlotBinding
from kernels.ops import SampleRows


@dataclass(frozen=True, slots=True)
class PromptLogprobRows:
    """Rows ``first`` … ``first + count − 1`` of the step predict prompt tokens that are known: entry's chunk."""

    entry: int
    first: int
    count: int
    num_top: int


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """T rows, S sequences, R sampled rows. ``sample_entries``: which of the plan's entries each sampled row is of."""

    plan: SchedulerOutput
    bindings: list[tuple[SlotBinding, Tensor]]
    block_table_updates: list[tuple[BlockTableUpdate, Tensor]]
    copies: list[CopyRun]  # before anything else
    row_slots: Tensor  # i64 [T]
    positions: Tensor  # i64 [T]
    sequence_slots: Tensor  # i64 [S]
    query_start: Tensor  # i32 [S + 1]
    num_blocks: int  # of the longest sequence
    sample_indices: Tensor  # i64 [R] rows of the step
    sample_entries: list[int]
    sample_rows: SampleRows
    prompt_logprob_rows: list[PromptLogprobRows]
