"""Times of this machine's monotonic clock on the calendar."""

import time
from typing import NamedTuple


class ClockPair(NamedTuple):
    """One moment on two clocks, in nanoseconds: places CLOCK_MONOTONIC times on the calendar."""

    monotonic_ns: int
    wall_ns: int

    @classmethod
    def now(cls) -> "ClockPair":
        """This moment."""
        return cls(time.monotonic_ns(), time.time_ns())

    def wall(self, monotonic_ns: int) -> int:
        """Nanoseconds since the epoch."""
        return self.wall_ns + monotonic_ns - self.monotonic_ns
