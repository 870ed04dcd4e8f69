"""The cells of every instrument by label values, and their rendering as Prometheus families.

Knows the shape of an instrument, not which ones there are.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from observability.cells import Histogram, Value
from observability.instruments import ENGINE_LABELS, Instrument, Kind

Cell = TypeVar("Cell", Value, Histogram)

CellValues = tuple[str, tuple[str, ...], tuple[float, ...]]
"""(instrument, label values, the number of a value, or the counts of a histogram and then its sum)."""


class Families(Collector):
    """Cells are made at first sight; ``own_labels`` are the values of model_name and engine where they apply.

    Series whose label values are known beforehand exist, at zero, from the start.
    """

    def __init__(self, instruments: Sequence[Instrument], prefix: str, own_labels: tuple[str, str]) -> None:
        self._prefix, self._own_labels = prefix, own_labels
        self._instruments = {instrument.name: instrument for instrument in instruments}
        if len(self._instruments) != len(instruments):
            raise ValueError("two instruments have one name")
        self._cells: dict[str, dict[tuple[str, ...], Value | Histogram]] = {name: {} for name in self._instruments}
        for instrument in instruments:
            cell = self.histogram if instrument.kind is Kind.HISTOGRAM else self.value
            for value in instrument.values:
                cell(instrument.name, value)
            if not instrument.values and instrument.labels == ENGINE_LABELS:
                cell(instrument.name)

    def value(self, name: str, *labels: str) -> Value:
        """The counter or gauge of that name. ``labels``: the values of the labels beyond model_name and engine."""
        return self._cell(name, labels, Value)

    def histogram(self, name: str, *labels: str) -> Histogram:
        """The histogram of that name."""
        return self._cell(name, labels, Histogram)

    def _cell(self, name: str, labels: tuple[str, ...], kind: type[Cell]) -> Cell:
        instrument, cells = self._instruments[name], self._cells[name]
        cell = cells.get(labels)
        if cell is None:
            if instrument.values and labels[-1] not in instrument.values:
                raise ValueError(f"{name} has no {instrument.labels[-1]} {labels[-1]!r}")
            cell = cells[labels] = Histogram(instrument.buckets) if instrument.kind is Kind.HISTOGRAM else Value()
        if not isinstance(cell, kind):
            raise TypeError(f"{name} is a {instrument.kind}")
        return cell

    def cell_values(self) -> tuple[CellValues, ...]:
        """Every cell that is not zero, to be added to those of another process."""
        found: list[CellValues] = []
        for name, cells in self._cells.items():
            for labels, cell in cells.items():
                numbers = (cell.value,) if isinstance(cell, Value) else (*cell.counts, cell.sum)
                if any(numbers):
                    found.append((name, labels, numbers))
        return tuple(found)

    def add(self, values: Iterable[CellValues], *, has_ended: bool = False) -> None:
        """What another process has counted, on top; without its gauges if it ``has_ended``. Raises KeyError for an
        instrument that is not in the table, ValueError for another number of buckets."""
        for name, labels, numbers in values:
            if has_ended and self._instruments[name].kind is Kind.GAUGE:
                continue
            if self._instruments[name].kind is not Kind.HISTOGRAM:
                (number,) = numbers
                self.value(name, *labels).value += number
                continue
            histogram, (*counts, total) = self.histogram(name, *labels), numbers
            histogram.counts[:] = [int(a + b) for a, b in zip(histogram.counts, counts, strict=True)]
            histogram.sum += total

    def collect(self) -> Iterator[Metric]:
        """The families, in the order of the instruments (called by prometheus_client)."""
        for instrument in self._instruments.values():
            name = f"{self._prefix}:{instrument.name}" if instrument.is_prefixed else instrument.name
            own_labels = self._own_labels if instrument.labels[:2] == ENGINE_LABELS else ()
            if instrument.kind is Kind.HISTOGRAM:
                yield self._histograms(instrument, name, own_labels)
            else:
                yield self._values(instrument, name, own_labels)

    def _values(self, instrument: Instrument, name: str, own_labels: tuple[str, ...]) -> Metric:
        family: CounterMetricFamily | GaugeMetricFamily
        if instrument.kind is Kind.COUNTER:
            family = CounterMetricFamily(name, instrument.help, labels=instrument.labels)
        else:
            family = GaugeMetricFamily(name, instrument.help, labels=instrument.labels)
        for labels, cell in self._cells[instrument.name].items():
            assert isinstance(cell, Value)
            family.add_metric((*own_labels, *labels), cell.value)
        return family

    def _histograms(self, instrument: Instrument, name: str, own_labels: tuple[str, ...]) -> Metric:
        family = HistogramMetricFamily(name, instrument.help, labels=instrument.labels)
        for labels, cell in self._cells[instrument.name].items():
            assert isinstance(cell, Histogram)
            bounds = [*map(floatToGoString, cell.bounds), "+Inf"]
            family.add_metric((*own_labels, *labels), list(zip(bounds, cell.cumulative(), strict=True)), cell.sum)
        return family
