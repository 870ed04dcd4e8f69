"""One step's records: what the scheduler decided, and what the runner found.

The only types that both sides of the executor know. All are immutable and hold plain values, so that an
executor may send them to another process. Those that exist once a sequence and step are msgspec structs: made in a
fifth of a dataclass's time, and invisible to the garbage collector.
"""

from collections.abc import Callable
from collections.abc import Sequence as ListOf
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol

import msgspec

from ipc.messages import TokenLogprobs
from ipc.params import SamplingParams


@dataclass(frozen=True, slots=True)
class SlotBinding:
    """A sequence takes a slot: the device row gets its tokens and parameters before the step runs."""

    slot: int
    token_ids: ListOf[int]  # prompt, then output so far
    num_prompt_tokens: int
    stream: int  # index of the choice: the counter's third word (design 7.4)
    params: SamplingParams


@dataclass(frozen=True, slots=True)
class BlockTableUpdate:
    """Blocks appended to a slot's row of the block table, from index ``start`` on."""

    slot: int
    start: int
    block_ids: tuple[int, ...]


class ScheduledSequence(msgspec.Struct, frozen=True, gc=False):
    """``num_tokens`` tokens from position ``start`` are computed; the last row is sampled if ``samples``.

    ``num_prompt_logprobs`` ≥ 0: rows that lie in the prompt also report the log-probability of the
    prompt token that follows each. ``needs_commit``: a host mask is applied after the step before is known.
    """

    slot: int
    start: int
    num_tokens: int
    samples: bool
    num_logprobs: int = -1
    num_prompt_logprobs: int = -1
    needs_commit: bool = False

    @property
    def end(self) -> int:
        """Position after the last computed one; also the position of the token that is sampled."""
        return self.start + self.num_tokens


@dataclass(frozen=True, slots=True)
class SchedulerOutput:
    """The plan of one step, in the order in which the device must apply it."""

    step: int
    bindings: tuple[SlotBinding, ...]
    block_table_updates: tuple[BlockTableUpdate, ...]
    # (source, destination), one after the other, before the forward pass; ids behind the pool's are host blocks.
    block_copies: tuple[tuple[int, int], ...]
    scheduled: tuple[ScheduledSequence, ...]

    @property
    def num_tokens(self) -> int:
        """Rows of the forward pass."""
        return sum(entry.num_tokens for entry in self.scheduled)


class StepFailure(Enum):
    """Why a step has nothing for a sequence, which fails, alone."""

    CORRUPT_LOGITS = auto()  # a NaN or +inf logit, or no token is left to draw
    OUT_OF_MEMORY = auto()  # the device had too little for this sequence's rows, by themselves


class SequenceOutput(msgspec.Struct, frozen=True, gc=False):
    """What the step found for one scheduled sequence: zero, one or several new tokens."""

    token_ids: tuple[int, ...] = ()
    logprobs: TokenLogprobs | None = None
    prompt_logprobs: TokenLogprobs | None = None  # of the prompt tokens start + 1 … end of this chunk
    failure: StepFailure | None = None


@dataclass(frozen=True, slots=True)
class ModelRunnerOutput:
    """One entry for each of the plan's scheduled sequences, in the same order."""

    sequences: tuple[SequenceOutput, ...]


NameRange = Callable[[str], AbstractContextManager[object]]
"""What happens inside is of that name in a profile."""


class StepHandle(Protocol):
    """A launched step."""

    def result(self) -> ModelRunnerOutput:
        """Wait for the step, without holding the GIL; raises what the step raised."""


class Executor(Protocol):
    """Runs plans on devices, in order."""

    def launch(self, plan: SchedulerOutput) -> StepHandle:
        """Start a step. Rows that need a commit are computed, not sampled."""

    def launch_sample(self, handle: StepHandle, masks: dict[int, bytes]) -> None:
        """Sample the rows that needed a commit; ``masks``: slot to allowed ids, one bit an id."""

    def copy_blocks(self, copies: tuple[tuple[int, int], ...]) -> None:
        """Make copies as those of a plan, behind all steps, and wait for them."""

    def name_ranges(self, name_range: NameRange | None) -> None:
        """A profile begins: the parts of each step launched from now on are named; None: it is over."""

    def shutdown(self) -> None:
        """Wait for what runs and let go of the device."""
