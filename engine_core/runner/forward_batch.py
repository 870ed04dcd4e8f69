"""One step's inputs as tensors, built on the host from the plan and read by the device alone."""

from dataclasses import dataclass

from torch import Tensor

from engine_core.device.queue import Stage
from engine_core.runner.block_copies import CopyRun
from engine_core.step import SchedulerOutput
from kernels.ops import SampleRows


@dataclass(frozen=True, slots=True)
class PromptLogprobRows:
    """Rows ``first`` … ``first + count − 1`` of the step predict prompt tokens that are known: entry's chunk."""

    entry: int
    first: int
    count: int
    num_top: int


@dataclass(frozen=True, slots=True)
class StepRows:
    """T rows of S sequences, of which R are sampled."""

    slots: Tensor  # i64 [T]
    positions: Tensor  # i64 [T]
    sequence_slots: Tensor  # i64 [S]
    query_start: Tensor  # i32 [S + 1]
    sample_indices: Tensor  # i64 [R] rows of the step
    num_blocks: int  # of the longest sequence

    @property
    def is_decode(self) -> bool:
        """One row a sequence, and every one is sampled."""
        return len(self.slots) == len(self.sequence_slots) == len(self.sample_indices)


@dataclass(frozen=True, slots=True)
class BoundTokens:
    """What a slot's tokens begin with from now on, i32."""

    slot: int
    token_ids: Tensor


@dataclass(frozen=True, slots=True)
class TableEntries:
    """Blocks put into the table of blocks, one by one: i64 [n] each, or nothing."""

    slots: Tensor
    indices: Tensor
    block_ids: Tensor


@dataclass(slots=True)
class ForwardBatch:
    """``sample_entries``: which of the plan's entries each sampled row is of. ``is_begun``: what must happen once, the
    copies above all, has been queued."""

    plan: SchedulerOutput
    stage: Stage
    bindings: list[BoundTokens]
    table_entries: TableEntries | None
    copies: list[CopyRun]  # before anything else
    rows: StepRows
    sample_entries: list[int]
    sample_rows: SampleRows
    prompt_logprob_rows: list[PromptLogprobRows]
    is_begun: bool = False
