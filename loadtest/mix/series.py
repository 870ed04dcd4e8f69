"""The course of a run: figures by seconds, as plots need them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil, isnan

from loadtest.figures import percentile
from loadtest.mix.health import Health
from loadtest.mix.record import Outcome, Record

MOST_BINS = 120

Points = list[tuple[float, float]]  # (seconds from the start, value)


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a plot."""

    label: str
    points: Points


@dataclass(frozen=True, slots=True)
class Bins:
    """The run in equal parts of at least a second."""

    started: float
    width: float
    count: int

    @classmethod
    def of(cls, started: float, stopped: float) -> "Bins":
        """Of a run between two times."""
        seconds = max(1.0, stopped - started)
        width = float(max(1, ceil(seconds / MOST_BINS)))
        return cls(started, width, ceil(seconds / width))

    def middle(self, index: int) -> float:
        """Seconds from the start."""
        return (index + 0.5) * self.width

    def gather(self, values: Iterable[tuple[float, float]]) -> list[list[float]]:
        """Values by the bin of their time; what lies outside of all is left out."""
        gathered: list[list[float]] = [[] for _ in range(self.count)]
        for time, value in values:
            index = int((time - self.started) // self.width)
            if 0 <= index < self.count:
                gathered[index].append(value)
        return gathered

    def percentiles(self, values: Iterable[tuple[float, float]], shares: Sequence[float], scale: float) -> list[Points]:
        """Points for each share; none where nothing was."""
        gathered = self.gather(values)
        return [
            [(self.middle(i), percentile(found, share) * scale) for i, found in enumerate(gathered) if found]
            for share in shares
        ]

    def rates(self, values: Iterable[tuple[float, float]]) -> Points:
        """Sums a second."""
        return [(self.middle(index), sum(found) / self.width) for index, found in enumerate(self.gather(values))]


def ttft(bins: Bins, records: Sequence[Record]) -> list[Series]:
    """Milliseconds, at the time of the first token."""
    seen = [(record.times[0], record.times[0] - record.due) for record in _seen(records)]
    return _named(("p50", "p90", "p99"), bins.percentiles(seen, (0.5, 0.9, 0.99), 1000))


def itl(bins: Bins, records: Sequence[Record]) -> list[Series]:
    """Milliseconds between chunks."""
    seen = [
        (time, gap)
        for record in _seen(records)
        for time, gap in zip(record.times, record.gaps, strict=True)
        if not isnan(gap)
    ]
    return _named(("p50", "p90", "p99"), bins.percentiles(seen, (0.5, 0.9, 0.99), 1000))


def tokens(bins: Bins, records: Sequence[Record]) -> list[Series]:
    """Tokens a second."""
    found = [(time, record.num_tokens / len(record.times)) for record in records for time in record.times]
    return [Series("output tokens/s", bins.rates(found))]


def in_flight(bins: Bins, records: Sequence[Record]) -> list[Series]:
    """Requests that were under way, and those of them without a first token, on average over a bin."""
    running = [(record.sent, record.ended) for record in records if not isnan(record.sent)]
    waiting = [(one.sent, one.times[0] if one.times else one.ended) for one in records if not isnan(one.sent)]
    return [Series("in flight", _overlap(bins, running)), Series("without a token", _overlap(bins, waiting))]


def outcomes(bins: Bins, records: Sequence[Record]) -> list[Series]:
    """Requests a second, by how they ended."""
    kinds = [Outcome.ANSWERED, *(one for one in Outcome if one not in (Outcome.ANSWERED, Outcome.UNFINISHED))]
    return [
        Series(kind.value, bins.rates((record.ended, 1.0) for record in records if record.outcome is kind))
        for kind in kinds
        if kind is Outcome.ANSWERED or any(record.outcome is kind for record in records)
    ]


def lag(bins: Bins, clients: Sequence[Health]) -> list[Series]:
    """Milliseconds that the client's loop was late."""
    noted = [pair for one in clients for pair in zip(one.times, one.lateness, strict=True)]
    return _named(("p50", "p99"), bins.percentiles(noted, (0.5, 0.99), 1000))


def _seen(records: Sequence[Record]) -> Iterable[Record]:
    return (record for record in records if record.times and record.outcome is not Outcome.FAILED)


def _named(labels: Sequence[str], points: Sequence[Points]) -> list[Series]:
    return [Series(label, found) for label, found in zip(labels, points, strict=True)]


def _overlap(bins: Bins, spans: Sequence[tuple[float, float]]) -> Points:
    """How many spans cover a bin, on average."""
    sums = [0.0] * bins.count
    for first, last in spans:
        begin = max(0.0, (first - bins.started) / bins.width)
        end = min(float(bins.count), (last - bins.started) / bins.width)
        for index in range(int(begin), min(bins.count, ceil(end))):
            sums[index] += max(0.0, min(end, index + 1) - max(begin, index))
    return [(bins.middle(index), value) for index, value in enumerate(sums)]
