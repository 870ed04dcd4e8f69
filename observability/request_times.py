"""When things happened to one request, and the phases and waits that follow from it.

Metrics and traces both read these, so that a histogram and a span never disagree. Knows nothing of either.
"""

import time
from dataclasses import dataclass, field
from typing import NamedTuple

POLICY = "policy"
"""Why a request waits that nothing holds back: it is not its turn yet."""


class Phase(NamedTuple):
    """One stretch of a request's life, in CLOCK_MONOTONIC nanoseconds."""

    name: str  # tokenize, queue, prefill or decode
    start_ns: int
    end_ns: int

    @property
    def seconds(self) -> float:
        """How long it took."""
        return (self.end_ns - self.start_ns) * 1e-9


@dataclass(slots=True)
class Stopwatch:
    """A context manager that knows when its block began and ended, in CLOCK_MONOTONIC nanoseconds."""

    start_ns: int = 0
    end_ns: int = 0

    def __enter__(self) -> "Stopwatch":
        self.start_ns = time.monotonic_ns()
        return self

    def __exit__(self, *_: object) -> None:
        self.end_ns = time.monotonic_ns()


@dataclass(slots=True)
class RequestTimes:
    """CLOCK_MONOTONIC nanoseconds; None: the request did not get that far.

    ``arrival_ns`` is when the gateway had read the request's head, before tokenization. ``admitted_ns`` is the first
    admission only: preemptions and resumptions lie inside prefill and decode.
    """

    arrival_ns: int
    queued_ns: int | None = None
    admitted_ns: int | None = None
    first_token_ns: int | None = None
    last_token_ns: int | None = None
    end_ns: int | None = None
    has_unknown_waits: bool = False  # the engine has said nothing of them
    _waits: list[tuple[int, str]] = field(default_factory=list)  # (since when, for what), in order

    def queue(self, time_ns: int) -> None:
        """In the engine's queue since then. Only the first time counts."""
        if self.queued_ns is None:
            self.queued_ns = time_ns

    def queue_unseen(self, time_ns: int) -> None:
        """As ``queue``, of a request that is over before the engine has said since when and why it waited."""
        if self.queued_ns is None:
            self.queued_ns, self.has_unknown_waits = time_ns, True

    def wait(self, time_ns: int, reason: str) -> None:
        """From then on it waits for that. Nothing after the first admission."""
        if self.admitted_ns is None:
            self._waits.append((time_ns, reason))

    def admit(self, time_ns: int) -> None:
        """In a step for the first time. Only the first time counts."""
        if self.admitted_ns is None:
            self.admitted_ns = time_ns

    def phases(self) -> tuple[Phase, ...]:
        """The phases in the engine that were entered, in order; one that the end cut short lasts until the end.

        A wait is a wait also when the client gave up on it: leaving those out would flatter the queue.
        """
        if self.end_ns is None:
            raise ValueError("a request that has not ended has no phases yet")
        found: list[Phase] = []
        if self.queued_ns is not None:
            found.append(_phase("queue", self.queued_ns, self.admitted_ns, self.end_ns))
        if self.admitted_ns is not None:
            found.append(_phase("prefill", self.admitted_ns, self.first_token_ns, self.end_ns))
        if self.first_token_ns is not None:
            found.append(_phase("decode", self.first_token_ns, self.last_token_ns, self.end_ns))
        return tuple(found)

    def waits(self) -> dict[str, float]:
        """Seconds in the queue by what was waited for; together they are the phase ``queue``. Empty if it is not known.

        What comes before the first reason was waiting for its turn.
        """
        if self.queued_ns is None or self.end_ns is None or self.has_unknown_waits:
            return {}
        until_ns = self.end_ns if self.admitted_ns is None else self.admitted_ns
        found: dict[str, float] = {}
        since_ns, reason = self.queued_ns, POLICY
        for next_ns, next_reason in [*self._waits, (until_ns, "")]:
            if next_ns > since_ns:
                found[reason] = found.get(reason, 0.0) + (next_ns - since_ns) * 1e-9
                since_ns = next_ns
            reason = next_reason
        return found or {POLICY: 0.0}

    @property
    def seconds(self) -> float:
        """From arrival to the end."""
        if self.end_ns is None:
            raise ValueError("a request that has not ended has no duration yet")
        return max(0, self.end_ns - self.arrival_ns) * 1e-9

    @property
    def inference_seconds(self) -> float | None:
        """From the first admission to the last token, or to an end before one; None without an admission."""
        if self.admitted_ns is None or self.end_ns is None:
            return None
        until_ns = self.end_ns if self.last_token_ns is None else self.last_token_ns
        return max(0, until_ns - self.admitted_ns) * 1e-9


def _phase(name: str, start_ns: int, until_ns: int | None, end_ns: int) -> Phase:
    """The engine's clock is read in another process: an end never lies before its start."""
    return Phase(name, start_ns, max(start_ns, end_ns if until_ns is None else until_ns))
