"""What became of one request, with the times that its user saw. Knows neither HTTP nor locust."""

import time
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from math import isnan, nan
from typing import Any

# Seconds since 1970 that never go back: records of several machines are put together by them.
_EPOCH = time.time() - time.perf_counter()


def now() -> float:
    """The clock of all records."""
    return time.perf_counter() + _EPOCH


class Outcome(StrEnum):
    """How a request ended. A refusal (429) and a hang-up are what was to be seen, no failures."""

    ANSWERED = "answered"
    FAILED = "failed"
    REFUSED = "refused"
    HUNG_UP = "hung up"
    UNFINISHED = "unfinished"  # the run was over first


@dataclass(slots=True)
class Record:
    """``arrived`` is when the user wanted the answer, ``due`` when this try was to be sent (later than ``arrived``
    after a refusal, which names the time), ``sent`` when it was: later than ``due`` when the client is too slow.

    ``times`` are the arrivals of chunks with output, of all choices; ``gaps[i]`` is how long the choice of
    ``times[i]`` had been silent, NaN for its first chunk.
    """

    name: str
    arrived: float
    due: float
    sent: float = nan
    ended: float = nan
    outcome: Outcome = Outcome.UNFINISHED
    status: int = 0
    message: str = ""
    retry_after: float | None = None
    num_choices: int = 1
    num_bytes: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    is_counted: bool = False  # by the server; otherwise a chunk counts as a token
    times: "array[float]" = field(default_factory=lambda: array("d"))
    gaps: "array[float]" = field(default_factory=lambda: array("f"))

    @property
    def ttft(self) -> float | None:
        """Seconds to the first output, from when the request was due."""
        return self.times[0] - self.due if self.times else None

    @property
    def ttft_of_user(self) -> float | None:
        """The same from when the user first asked: with what a refusal made them wait."""
        return self.times[0] - self.arrived if self.times else None

    @property
    def tpot(self) -> float | None:
        """Seconds a token of a choice after its first; choices are taken to be of one length, as usage is of all."""
        tokens = self.num_tokens / self.num_choices
        if self.outcome is not Outcome.ANSWERED or tokens < 2 or not self.times:
            return None
        return (self.times[-1] - self.times[0]) / (tokens - 1)

    @property
    def latency(self) -> float:
        """Seconds to the end, from when the request was due."""
        return self.ended - self.due

    @property
    def num_tokens(self) -> int:
        """Of the output: the server's count where there is one."""
        return self.completion_tokens if self.is_counted else len(self.times)

    def itl(self) -> Iterator[float]:
        """Seconds between chunks of one choice."""
        return (gap for gap in self.gaps if not isnan(gap))

    def to_wire(self) -> list[Any]:
        """For another process: plain values and bytes."""
        values = [getattr(self, name) for name in self.__slots__[:-2]]
        return [*values, self.times.tobytes(), self.gaps.tobytes()]

    @classmethod
    def from_wire(cls, values: list[Any]) -> "Record":
        """What ``to_wire`` made."""
        *plain, times, gaps = values
        fields: dict[str, Any] = dict(zip(cls.__slots__, plain, strict=False))
        fields["outcome"] = Outcome(fields["outcome"])
        return cls(**fields, times=array("d", times), gaps=array("f", gaps))
