"""How often an engine may be started anew before it is given up."""

from collections import deque

WINDOW_SECONDS = 600.0
MOST_IN_VAIN = 3


class RestartLimit:
    """``most`` restarts in ten minutes; 0: none at all. Times are seconds of one monotonic clock."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._times: deque[float] = deque()
        self._num_in_vain = 0

    def allows(self, now: float, *, counts: bool, made_progress: bool) -> bool:
        """Whether an engine that has just died may be started anew. ``counts``: unless the crash was part of finding
        the request that causes them. ``made_progress``: it had sent an output, or the crash narrowed the search."""
        self._num_in_vain = 0 if made_progress else self._num_in_vain + 1
        while self._times and now - self._times[0] >= WINDOW_SECONDS:
            self._times.popleft()
        if not self._most or self._num_in_vain >= MOST_IN_VAIN or (counts and len(self._times) >= self._most):
            return False
        if counts:
            self._times.append(now)
        return True
