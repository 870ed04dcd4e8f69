"""What one tenant may use at a time: tokens a minute and requests at once. Whoever is refused is told when to come.

Like the queue, a refusal books what it asked for until its time has passed, so that the next one is told a later time.
Knows no HTTP and no names. ``now``: monotonic seconds.
"""

import math
from collections import deque

GRACE_SECONDS = 0.5
MAX_EXPECTED = 4096
MAX_RETRY_AFTER = 24 * 3600


class TokenBucket:
    """Tokens that flow in evenly, at most those of a minute. It may be overdrawn: a request is taken by an estimate."""

    def __init__(self, tokens_per_minute: int, now: float) -> None:
        self.capacity = float(tokens_per_minute)
        self._level, self._time = self.capacity, now
        self._told, self._level_when_told = now, self.capacity  # of the last one refused, who has come by then

    def level(self, now: float) -> float:
        """Tokens that are there."""
        if now > self._time:
            self._level, self._time = self._level_at(now, self._level, self._time), now
        return self._level

    def seconds_until(self, amount: float, now: float) -> float:
        """Until ``amount`` is there, nobody else regarded. More than fits counts as all that fits."""
        return max(0.0, (min(amount, self.capacity) - self.level(now)) * 60 / self.capacity)

    def take(self, amount: float, now: float) -> None:
        """Tokens used, or with a minus sign given back."""
        self._level = min(self.capacity, self.level(now) - amount)

    def refuse(self, amount: float, now: float) -> int:
        """Seconds after which who wants ``amount`` should come again, behind all who were told before and whose time
        is not over."""
        amount, level, start = min(amount, self.capacity), self.level(now), now
        if self._told + GRACE_SECONDS > now:
            start = self._told
            level = min(self._level_when_told, self._level_at(start, level, now))
        seconds = _whole(start + max(0.0, amount - level) * 60 / self.capacity - now)
        self._told = now + seconds
        self._level_when_told = self._level_at(self._told, level, start) - amount
        return seconds

    def _level_at(self, time: float, level: float, since: float) -> float:
        """At ``time``, if it was ``level`` at ``since``."""
        return min(self.capacity, level + (time - since) * self.capacity / 60)


class RequestSlots:
    """Requests at once. When one will be free is told by how long requests have taken of late."""

    def __init__(self, num_slots: int) -> None:
        self.num_slots, self.num_taken = num_slots, 0
        self.usual_seconds = 1.0
        self._expected: deque[float] = deque()  # when those who were refused will come, in order

    @property
    def is_full(self) -> bool:
        """No slot is free."""
        return self.num_taken >= self.num_slots

    def take(self) -> None:
        """A request begins."""
        self.num_taken += 1

    def give_back(self, seconds: float) -> None:
        """A request has ended after that time."""
        self.num_taken -= 1
        self.usual_seconds += (seconds - self.usual_seconds) / 8

    def refuse(self, now: float) -> int:
        """Seconds after which to come again."""
        expected = self._expected
        while expected and expected[0] + GRACE_SECONDS <= now:
            expected.popleft()
        seconds = _whole(self.usual_seconds * (len(expected) + 1) / self.num_slots)
        if len(expected) < MAX_EXPECTED:
            expected.append(max(now + seconds, expected[-1] if expected else now))
        return seconds


def _whole(seconds: float) -> int:
    return min(MAX_RETRY_AFTER, max(1, math.ceil(seconds)))
