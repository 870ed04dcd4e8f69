"""When things happened to one request, and the phases that follow from it.

Metrics and traces both read these, so that a histogram and a span never disagree. Knows nothing of either.
"""

from dataclasses import dataclass
from typing import NamedTuple


class Phase(NamedTuple):
    """One stretch of a request's life, in CLOCK_MONOTONIC nanoseconds."""

    name: str  # queue, prefill or decode
    start_ns: int
    end_ns: int

    @property
    def seconds(self) -> float:
        """How long it took."""
        return (self.end_ns - self.start_ns) * 1e-9


@dataclass(slots=True)
class RequestTimes:
    """CLOCK_MONOTONIC nanoseconds; None: the request did not get that far.

    ``arrival_ns`` is when the gateway had read the request, before tokenization. ``admitted_ns`` is the first
    admission only: preemptions and resumptions lie inside prefill and decode.
    """

    arrival_ns: int
    queued_ns: int | None = None
    admitted_ns: int | None = None
    first_token_ns: int | None = None
    last_token_ns: int | None = None
    end_ns: int | None = None

    def phases(self) -> tuple[Phase, ...]:
        """The phases that were entered, in order; one that the end cut short lasts until the end.

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

    @property
    def seconds(self) -> float:
        """From arrival to the end."""
        if self.end_ns is None:
            raise ValueError("a request that has not ended has no duration yet")
        return max(0, self.end_ns - self.arrival_ns) * 1e-9


def _phase(name: str, start_ns: int, until_ns: int | None, end_ns: int) -> Phase:
    """The engine's clock is read in another process: an end never lies before its start."""
    return Phase(name, start_ns, max(start_ns, end_ns if until_ns is None else until_ns))
