"""Where the loop's time goes: nanoseconds by phase, cumulative and by step, and histograms of step sizes.

Plain numbers for ``ipc.messages.Stats``; names and buckets of the exported metrics are the gateway's.
"""

from bisect import bisect_left
from collections.abc import Callable
from types import TracebackType
from typing import Protocol

from ipc.messages import STAGE_NS_BUCKETS, STEP_SEQUENCE_BUCKETS, STEP_TOKEN_BUCKETS


class Stopwatch:
    """Adds up the time spent inside ``with``. A step may be inside more than once: ``end_step`` counts what came
    together, in ``steps`` by STAGE_NS_BUCKETS."""

    __slots__ = ("_clock", "_started", "_total_before", "steps", "total_ns")

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self.total_ns = self._total_before = 0
        self.steps = [0] * (len(STAGE_NS_BUCKETS) + 1)

    def __enter__(self) -> None:
        self._started = self._clock()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.total_ns += self._clock() - self._started

    def end_step(self) -> None:
        """What was added since the last time is a step's."""
        self.steps[bisect_left(STAGE_NS_BUCKETS, self.total_ns - self._total_before)] += 1
        self._total_before = self.total_ns


class StageTimer(Protocol):
    """What ``Stopwatch`` is to those who use one."""

    @property
    def total_ns(self) -> int: ...

    @property
    def steps(self) -> list[int]: ...

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    def end_step(self) -> None: ...


class StepTimes:
    """Phases of the loop, and how many tokens and sequences its steps computed."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self.schedule: StageTimer = Stopwatch(clock)
        self.launch: StageTimer = Stopwatch(clock)
        self.wait: StageTimer = Stopwatch(clock)
        self.commit: StageTimer = Stopwatch(clock)
        self.num_steps = 0
        self.num_tokens = self.num_sequences = 0
        self.steps_by_tokens = [0] * (len(STEP_TOKEN_BUCKETS) + 1)
        self.steps_by_sequences = [0] * (len(STEP_SEQUENCE_BUCKETS) + 1)

    def count_step(self, num_tokens: int, num_sequences: int) -> None:
        """A step was launched. With overlap it counts with the waiting and learning of the one before it."""
        self.num_steps += 1
        self.num_tokens += num_tokens
        self.num_sequences += num_sequences
        self.steps_by_tokens[bisect_left(STEP_TOKEN_BUCKETS, num_tokens)] += 1
        self.steps_by_sequences[bisect_left(STEP_SEQUENCE_BUCKETS, num_sequences)] += 1
        for stage in (self.schedule, self.launch, self.wait, self.commit):
            stage.end_step()
