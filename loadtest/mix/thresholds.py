"""What a run must have been like for its process to end with 0."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from loadtest.mix.summary import Summary


@dataclass(frozen=True, slots=True)
class Threshold:
    """A flag ``--max-…`` or ``--min-…``, and the figure it is about."""

    flag: str
    figure: Callable[[Summary], float]
    unit: str
    about: str

    @property
    def name(self) -> str:
        """As an attribute of the command line's values."""
        return self.flag.removeprefix("--").replace("-", "_")

    def broken_by(self, summary: Summary, bound: float) -> str:
        """What is wrong, and by how much; empty if nothing is. Nothing measured is no success."""
        value = self.figure(summary)
        if value != value:
            return f"{self.flag} {bound:g}: there is no {self.about}"
        is_most = self.flag.startswith("--max")
        excess = value - bound if is_most else bound - value
        if excess <= 0:
            return ""
        unit = f" {self.unit}" if self.unit else ""
        way = "above" if is_most else "below"
        return f"{self.flag} {bound:g}: {self.about} is {value:.4g}{unit}, {excess:.4g} {way} it"


THRESHOLDS = (
    Threshold("--max-ttft-p50-ms", lambda run: run.total.ttft_ms.p50, "ms", "TTFT p50"),
    Threshold("--max-ttft-p99-ms", lambda run: run.total.ttft_ms.p99, "ms", "TTFT p99"),
    Threshold("--max-itl-p99-ms", lambda run: run.total.itl_ms.p99, "ms", "ITL p99"),
    Threshold("--max-tpot-p99-ms", lambda run: run.total.tpot_ms.p99, "ms", "TPOT p99"),
    Threshold("--max-latency-p99-ms", lambda run: run.total.latency_ms.p99, "ms", "latency p99"),
    Threshold("--min-tokens-per-second", lambda run: run.tokens_per_second, "tokens/s", "output"),
    Threshold("--min-goodput", lambda run: run.goodput, "requests/s", "goodput"),
    Threshold("--min-goodput-share", lambda run: run.goodput_share, "", "share of good answers"),
    Threshold("--max-failures", lambda run: run.total.failed, "", "number of failures"),
    Threshold("--max-refusals", lambda run: run.total.refused, "", "number of refusals"),
)


def broken(summary: Summary, bounds: Mapping[str, float | None]) -> Iterable[str]:
    """A line for each bound, by its name, that does not hold."""
    for threshold in THRESHOLDS:
        if (bound := bounds.get(threshold.name)) is not None and (wrong := threshold.broken_by(summary, bound)):
            yield wrong
