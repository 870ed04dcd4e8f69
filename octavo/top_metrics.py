"""Prometheus text as numbers: what a server has counted at one moment, and what happened between two of them.

Any prefix will do (octavo's, vLLM's): it is what stands before ``num_requests_running``. Engines are added up.
"""

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

LANDMARK = "num_requests_running"
OWN_LABELS = frozenset({"model_name", "engine", "engine_index", "le"})

Labels = tuple[tuple[str, str], ...]


@dataclass(slots=True)
class Snapshot:
    """``seconds``: when, on any clock. ``values``: by name without its prefix, then by the labels that are not the
    engine's own; ``buckets``: cumulative counts by upper bound."""

    seconds: float
    values: dict[str, dict[Labels, float]] = field(default_factory=lambda: defaultdict(dict))
    buckets: dict[str, dict[float, float]] = field(default_factory=lambda: defaultdict(dict))
    models: set[str] = field(default_factory=set)
    num_engines: int = 1

    @classmethod
    def parse(cls, text: str, seconds: float) -> "Snapshot":
        """Raises ValueError if this is no Prometheus text, or nothing of a model server."""
        samples = list(_samples(text))
        landmark = next((one.name for one in samples if one.name.endswith(LANDMARK)), None)
        if landmark is None:
            raise ValueError("its metrics are not those of a model server")
        prefix, snapshot = landmark.removesuffix(LANDMARK), cls(seconds)
        snapshot.num_engines = sum(one.name == landmark for one in samples)
        for sample in samples:
            snapshot._add(sample.name.removeprefix(prefix), sample)
        return snapshot

    def _add(self, name: str, sample: Sample) -> None:
        if model := sample.labels.get("model_name"):
            self.models.add(model)
        bound = sample.labels.get("le")
        if bound is not None and name.endswith("_bucket"):
            buckets = self.buckets[name.removesuffix("_bucket")]
            buckets[float(bound)] = buckets.get(float(bound), 0.0) + sample.value
            return
        labels = tuple(sorted((key, value) for key, value in sample.labels.items() if key not in OWN_LABELS))
        values = self.values[name]
        values[labels] = values.get(labels, 0.0) + sample.value

    def value(self, *names: str) -> float:
        """Of the first of these names that there is, over all labels; NaN if there is none."""
        return next((sum(self.values[name].values()) for name in names if name in self.values), math.nan)

    def share(self, *names: str) -> float:
        """Of a gauge from 0 to 1, the mean of all engines."""
        return self.value(*names) / self.num_engines

    def by_label(self, name: str, label: str) -> dict[str, float]:
        """What is not 0, by the value of one label, the largest first."""
        found: dict[str, float] = {}
        for labels, value in self.values.get(name, {}).items():
            key = dict(labels).get(label)
            if key is not None and value:
                found[key] = found.get(key, 0.0) + value
        return dict(sorted(found.items(), key=lambda item: -item[1]))


@dataclass(frozen=True, slots=True)
class Interval:
    """From one snapshot of a server to a later one. Counters that fell are those of a server that was started anew:
    what they count is not known."""

    before: Snapshot
    now: Snapshot

    @property
    def seconds(self) -> float:
        """How long it is."""
        return self.now.seconds - self.before.seconds

    def grown(self, *names: str) -> float:
        """By how much a counter grew; NaN if that is not known."""
        grown = self.now.value(*names) - self.before.value(*names)
        return grown if grown >= 0 else math.nan

    def rate(self, *names: str) -> float:
        """By how much it grew in a second."""
        return self.grown(*names) / self.seconds if self.seconds > 0 else math.nan

    def quantile(self, share: float, *names: str) -> float:
        """What that share of the values observed meanwhile does not exceed, straight between the bounds of its bucket;
        the last bound for those beyond it, NaN if nothing was observed."""
        name = next((name for name in names if name in self.now.buckets), "")
        before = self.before.buckets.get(name, {})
        counts = [
            (bound, count - before.get(bound, 0.0)) for bound, count in sorted(self.now.buckets.get(name, {}).items())
        ]
        total = counts[-1][1] if counts else 0.0
        if total <= 0:
            return math.nan
        lower = below = 0.0
        for bound, count in counts:
            if count >= share * total:
                if math.isinf(bound):
                    return lower
                return lower + (bound - lower) * (share * total - below) / (count - below)
            lower, below = bound, count
        return lower


def _samples(text: str) -> Iterator[Sample]:
    """Raises ValueError."""
    for family in text_string_to_metric_families(text):
        yield from family.samples
