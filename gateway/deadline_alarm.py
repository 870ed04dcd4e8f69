"""Calls when the earliest of some deadlines is over: one timer, however many there are. Knows no requests."""

import asyncio
from collections.abc import Callable, Iterable

SLACK_SECONDS = 0.001  # event loops round down to milliseconds


class DeadlineAlarm:
    """``clock``: the nanoseconds that deadlines are given in; 0 is none. ``on_late`` is told, and sets it anew."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Callable[[], int], on_late: Callable[[], None]) -> None:
        self._loop, self._clock, self._on_late = loop, clock, on_late
        self._timer: asyncio.TimerHandle | None = None
        self._deadline_ns = 0

    def set(self, deadlines_ns: Iterable[int]) -> None:
        """These count from now on, and no others."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.watch(min((deadline_ns for deadline_ns in deadlines_ns if deadline_ns), default=0))

    def watch(self, deadline_ns: int) -> None:
        """This one counts, too."""
        if not deadline_ns or (self._timer is not None and self._deadline_ns <= deadline_ns):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._deadline_ns = deadline_ns
        seconds = max(0, deadline_ns - self._clock()) * 1e-9 + SLACK_SECONDS
        self._timer = self._loop.call_later(seconds, self._ring)

    def _ring(self) -> None:
        self._timer = None
        self._on_late()
