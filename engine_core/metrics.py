"""Where the loop's time goes: cumulative nanoseconds by phase, and a histogram of step sizes.

Plain numbers for ``ipc.messages.Stats``; names and buckets of the exported metrics are the gateway's.
"""

import bisect
from collections.abc import Callable
from types import TracebackType

from ipc.messages import STEP_TOKEN_BUCKETS


class Stopwatch:
    """Adds up the time spent inside ``with``."""

    __slots__ = ("_clock", "_started", "total_ns")

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self.total_ns = 0

    def __enter__(self) -> None:
        self._started = self._clock()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.total_ns += self._clock() - self._started


class StepTimes:
    """Phases of the loop, and how many tokens its steps computed."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self.schedule, self.launch = Stopwatch(clock), Stopwatch(clock)
        self.wait, self.commit = Stopwatch(clock), Stopwatch(clock)
        self.num_steps = 0
        self.num_tokens = 0
        self.steps_by_tokens = [0] * (len(STEP_TOKEN_BUCKETS) + 1)

    def count_step(self, num_tokens: int) -> None:
        """A step of so many tokens was launched."""
        self.num_steps += 1
        self.num_tokens += num_tokens
        self.steps_by_tokens[bisect.bisect_left(STEP_TOKEN_BUCKETS, num_tokens)] += 1
