"""The engine's reports, folded so that counters never fall.

An engine counts from zero each time it is started. What a dead incarnation had counted moves into a base;
what the living one reports comes on top. The reports' field names stand in the table of instruments.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

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


class EngineCounters:
    """What one engine reports. Its incarnations are numbered upwards from 0; reports of a dead one are dropped."""

    def __init__(self, families: Families, instruments: Iterable[Instrument]) -> None:
        self._incarnation, self._is_alive = -1, False
        self._gauges: dict[str, Value] = {}
        self._counters: list[_Counter] = []
        for instrument in instruments:
            if instrument.source and instrument.kind is Kind.GAUGE:
                self._gauges[instrument.source] = families.value(instrument.name)
            elif instrument.source and instrument.kind is Kind.COUNTER:
                self._counters.extend(_counters(families, instrument))
        self._kv_usage = families.value("kv_cache_usage_perc")
        self._waiting = {reason: families.value("num_requests_waiting_by_reason", reason) for reason in WAIT_REASONS}
        self._step_tokens: Histogram = families.histogram("iteration_tokens_total")
        self._step_counts = [_Folded() for _ in self._step_tokens.counts]
        self._step_sum = _Folded()

    def update(
        self,
        incarnation: int,
        values: Mapping[str, int],
        *,
        step_tokens: Sequence[int] = (),
        waiting_by_reason: Mapping[str, int] | None = None,
    ) -> None:
        """One report: gauges as they are, counters since the incarnation's start, as it names them.

        ``step_tokens`` are steps per bucket of tokens, then the rest; empty before the first step.
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
        if step_tokens:
            counts = zip(self._step_counts, step_tokens, strict=True)
            self._step_tokens.counts[:] = [folded.report(count) for folded, count in counts]
            self._step_tokens.sum = self._step_sum.report(values["step_tokens_sum"])

    def end(self, incarnation: int) -> None:
        """The engine process is gone: its counts stay, its gauges are 0. Told twice, or too late, it does nothing."""
        if incarnation != self._incarnation or not self._is_alive:
            return
        self._is_alive = False
        for folded in (*(counter.count for counter in self._counters), *self._step_counts, self._step_sum):
            folded.fold()
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
