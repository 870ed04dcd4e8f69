"""The engine's reports, folded so that counters never fall.

An engine counts from zero each time it is started. What a dead incarnation had counted moves into a base;
what the living one reports comes on top. The reports' field names stand in the table of instruments.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from observability.cells import Histogram, Value
from observability.families import Families
from observability.instruments import WAIT_REASONS, Instrument, Kind


@dataclass(slots=True)
class _Folded:
    """One cumulative count: ``base`` of the dead incarnations, ``live`` of the present one."""

    base: int = 0
    live: int = 0

    def report(self, count: int) -> int:
        """The total, now that the present incarnation reports ``count``, which never goes back within one."""
        self.live = max(self.live, count)
        return self.base + self.live

    def fold(self) -> None:
        """The present incarnation is dead."""
        self.base, self.live = self.base + self.live, 0


@dataclass(frozen=True, slots=True)
class _Counter:
    """A counter, the report's field that feeds it, and what brings the field's unit to the counter's."""

    cell: Value
    source: str
    scale: float
    count: _Folded = field(default_factory=_Folded)


@dataclass(frozen=True, slots=True)
class _Histogram:
    """A histogram, the report's fields of its counts and of its sum, and what brings the sum's unit to ours."""

    cell: Histogram
    source: str
    sum_source: str
    scale: float
    counts: list[_Folded]
    total: _Folded = field(default_factory=_Folded)

    def report(self, values: Mapping[str, Any]) -> None:
        """What the present incarnation has counted."""
        if counts := values[self.source]:
            pairs = zip(self.counts, counts, strict=True)
            self.cell.counts[:] = [folded.report(count) for folded, count in pairs]
            self.cell.sum = self.total.report(values[self.sum_source]) * self.scale

    def fold(self) -> None:
        """It is dead."""
        for folded in (*self.counts, self.total):
            folded.fold()


class EngineCounters:
    """What one engine reports. Its incarnations are numbered upwards from 0; reports of a dead one are dropped."""

    def __init__(self, families: Families, instruments: Iterable[Instrument]) -> None:
        self._incarnation, self._is_alive = -1, False
        self._gauges: dict[str, Value] = {}
        self._counters: list[_Counter] = []
        self._histograms: list[_Histogram] = []
        for instrument in instruments:
            if instrument.source and instrument.kind is Kind.GAUGE:
                self._gauges[instrument.source] = families.value(instrument.name)
            elif instrument.source and instrument.kind is Kind.COUNTER:
                self._counters.extend(_counters(families, instrument))
            elif instrument.source:
                self._histograms.extend(_histograms(families, instrument))
        self._kv_usage = families.value("kv_cache_usage_perc")
        self._waiting = {reason: families.value("num_requests_waiting_by_reason", reason) for reason in WAIT_REASONS}

    def update(
        self,
        incarnation: int,
        values: Mapping[str, Any],
        *,
        waiting_by_reason: Mapping[str, int] | None = None,
    ) -> None:
        """One report: gauges as they are, counters since the incarnation's start, as it names them.

        A histogram's field has the counts of its buckets and then of the rest; empty before the first observation.
        ``waiting_by_reason`` has the reasons that somebody waits for. A field of an instrument that is missing
        raises KeyError, a wrong number of buckets ValueError; fields that no instrument reads are left alone.
        """
        if incarnation < self._incarnation or (incarnation == self._incarnation and not self._is_alive):
            return
        if incarnation > self._incarnation:
            self.end(self._incarnation)
            self._incarnation, self._is_alive = incarnation, True
        for counter in self._counters:
            counter.cell.value = counter.count.report(values[counter.source]) * counter.scale
        for name, gauge in self._gauges.items():
            gauge.value = values[name]
        num_blocks = values["num_blocks"]
        self._kv_usage.value = 1 - values["num_free_blocks"] / num_blocks if num_blocks else 0.0
        waiting = waiting_by_reason or {}
        if not waiting.keys() <= self._waiting.keys():
            raise ValueError(f"unknown wait reason among {sorted(waiting)}")
        for reason, cell in self._waiting.items():
            cell.value = waiting.get(reason, 0)
        for histogram in self._histograms:
            histogram.report(values)

    def end(self, incarnation: int) -> None:
        """The engine process is gone: its counts stay, its gauges are 0. Told twice, or too late, it does nothing."""
        if incarnation != self._incarnation or not self._is_alive:
            return
        self._is_alive = False
        for counter in self._counters:
            counter.count.fold()
        for histogram in self._histograms:
            histogram.fold()
        for gauge in (*self._gauges.values(), *self._waiting.values(), self._kv_usage):
            gauge.value = 0.0


def _counters(families: Families, instrument: Instrument) -> list[_Counter]:
    """One, or one for each value of the instrument's own label, whose name completes the source."""
    if not instrument.values:
        return [_Counter(families.value(instrument.name), instrument.source, instrument.scale)]
    return [
        _Counter(families.value(instrument.name, value), instrument.source.format(value), instrument.scale)
        for value in instrument.values
    ]


def _histograms(families: Families, instrument: Instrument) -> list[_Histogram]:
    """Likewise."""
    return [
        _Histogram(
            cell := families.histogram(instrument.name, *filter(None, (value,))),
            instrument.source.format(value),
            instrument.sum_source.format(value),
            instrument.scale,
            [_Folded() for _ in cell.counts],
        )
        for value in instrument.values or ("",)
    ]
