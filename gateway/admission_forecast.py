"""What will happen to the requests that are here, and to some that are expected: a small simulation on heaps.

Sequences take slots in their order, prompts are computed one after the other, outputs run at a common pace. Placing
one costs O(log n). Knows no clock: the times that go in and come out are seconds of the caller's.
"""

from collections import deque
from dataclasses import dataclass
from heapq import heappop, heappush

from gateway.admission_rates import Pace, Work

DURING_DECODE = 2.0
"""Times that a prompt takes longer beside sequences that decode: the engine gives it half of such a step."""


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """``num_sequences``: most in flight, waiting or running; ``num_tokens``: most prompt tokens not computed yet;
    ``max_wait``: longest time to the first token, in seconds."""

    num_sequences: int
    num_tokens: int
    max_wait: float


class Forecast:
    """From ``now`` on. Sequences are told in the order in which they will run: ``run`` the running ones first."""

    def __init__(self, now: float, pace: Pace, limits: QueueLimits) -> None:
        self.now, self.pace, self._limits = now, pace, limits
        self._slots: list[float] = []  # a heap: when each taken slot will be free
        self._places: list[float] = []  # likewise the places that the limit on sequences allows
        self._prompts: deque[tuple[float, float]] = deque()  # (when it will be computed, tokens)
        self._num_tokens = 0.0  # of these
        self._prefill_free = now

    def run(self, num_sequences: int, output_tokens: float) -> None:
        """Sequences that run, each with so many tokens to come."""
        finish = self.now + output_tokens * self.pace.turn
        for _ in range(num_sequences):
            heappush(self._slots, finish)
            heappush(self._places, finish)

    def first_token(self, work: Work) -> float:
        """When its first token would be there if it came now."""
        slots = self._slots
        is_full = len(slots) >= self.pace.num_slots
        start = max(self._prefill_free, slots[0] if is_full else self.now)
        slowdown = DURING_DECODE if slots and not is_full else 1.0
        return start + work.prompt_tokens * self.pace.prefill * slowdown

    def when_admitted(self, work: Work, patience: float) -> float:
        """The first time at which it would be admitted, everything told so far taken into account. Whatever it waits
        for is its own from then on: ``add`` it. ``patience``: seconds that it may wait once it is admitted."""
        limits, places, prompts = self._limits, self._places, self._prompts
        time = max(self.now, self.first_token(work) - patience)
        while places and len(places) + work.num_sequences > limits.num_sequences:
            time = max(time, heappop(places))
        while prompts and self._num_tokens + work.prompt_tokens > limits.num_tokens:
            computed, num_tokens = prompts.popleft()
            self._num_tokens -= num_tokens
            time = max(time, computed)
        return time

    def add(self, work: Work, arrival: float) -> None:
        """It will be there at ``arrival``, behind all that were told before."""
        pace, slots = self.pace, self._slots
        start = first = max(arrival, self.now)
        for index in range(work.num_sequences):
            start = max(first, heappop(slots)) if len(slots) >= pace.num_slots else first
            if index == 0:  # it computes the prompt, the others fork from it
                computing = work.prompt_tokens * pace.prefill
                first = max(start, self._prefill_free) + computing
                # Its output takes its share of the time from later prompts, but never more than they take themselves.
                share = work.num_sequences * work.output_tokens * pace.step / pace.num_slots
                self._prefill_free = first + min(share, (DURING_DECODE - 1.0) * computing)
                self._prompts.append((first, work.prompt_tokens))
                self._num_tokens += work.prompt_tokens
            finish = max(first + work.output_tokens * pace.step, start + work.output_tokens * pace.turn)
            heappush(slots, finish)
            heappush(self._places, finish)
