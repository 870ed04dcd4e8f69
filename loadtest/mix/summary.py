"""The figures of a run: counts, times, rates, goodput, and what the client was like. Milliseconds, where it says so.

TTFT and latency count from when a request was due; goodput takes the TTFT from when its user first asked, so that
refusing them makes no server look good. Rates are of the time between the start and the end of the run.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import nan
from typing import Any

from loadtest.figures import percentile
from loadtest.mix.health import Health
from loadtest.mix.record import Outcome, Record
from loadtest.mix.settings import Settings


@dataclass(frozen=True, slots=True)
class Times:
    """Percentiles by nearest rank; NaN where there is nothing."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float
    longest: float

    @classmethod
    def of(cls, seconds: Iterable[float]) -> "Times":
        """In milliseconds."""
        values = sorted(value * 1000 for value in seconds)
        if not values:
            return cls(0, nan, nan, nan, nan, nan)
        p50, p90, p99 = (percentile(values, share) for share in (0.5, 0.9, 0.99))
        return cls(len(values), sum(values) / len(values), p50, p90, p99, values[-1])


@dataclass(frozen=True, slots=True)
class Figures:
    """Of all requests of one name, or of all. Times are of requests that did not fail, as far as they got."""

    answered: int
    failed: int
    refused: int
    hung_up: int
    unfinished: int
    good: int
    ttft_ms: Times
    itl_ms: Times
    tpot_ms: Times
    latency_ms: Times
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int

    @classmethod
    def of(cls, records: Sequence[Record], settings: Settings) -> "Figures":
        """Of these."""
        counts = Counter(record.outcome for record in records)
        seen = [record for record in records if record.outcome is not Outcome.FAILED]
        answered = [record for record in records if record.outcome is Outcome.ANSWERED]
        return cls(
            counts[Outcome.ANSWERED],
            counts[Outcome.FAILED],
            counts[Outcome.REFUSED],
            counts[Outcome.HUNG_UP],
            counts[Outcome.UNFINISHED],
            sum(is_good(record, settings) for record in answered),
            Times.of(ttft for record in seen if (ttft := record.ttft) is not None),
            Times.of(gap for record in seen for gap in record.itl()),
            Times.of(tpot for record in seen if (tpot := record.tpot) is not None),
            Times.of(record.latency for record in answered),
            sum(record.prompt_tokens for record in records),
            sum(record.cached_tokens for record in records),
            sum(record.num_tokens for record in records),
        )


def is_good(record: Record, settings: Settings) -> bool:
    """Answered within both objectives."""
    if record.outcome is not Outcome.ANSWERED:
        return False
    ttft, tpot = record.ttft_of_user, record.tpot
    return (
        ttft is not None
        and ttft * 1000 <= settings.slo_ttft_ms
        and (tpot is None or tpot * 1000 <= settings.slo_tpot_ms)
    )


@dataclass(frozen=True, slots=True)
class Client:
    """The worst of all client processes."""

    processes: int
    lag_p99_ms: float
    cpu_share: float
    sent_late_p99_ms: float  # from when a request was due to when it was sent


@dataclass(frozen=True, slots=True)
class Summary:
    """Of a run. ``by_name`` has a line for each kind of request."""

    host: str
    model: str
    arrivals: str
    started: float
    seconds: float
    total: Figures
    by_name: dict[str, Figures]
    requests_per_second: float
    tokens_per_second: float
    goodput: float  # requests a second
    goodput_share: float  # of those that were answered, failed or were not finished
    slo_ttft_ms: float
    slo_tpot_ms: float
    uncounted: int  # answers without usage: a chunk counts as a token there
    client: Client
    warnings: tuple[str, ...]
    errors: dict[str, int]
    broken: tuple[str, ...] = ()

    def with_broken(self, broken: tuple[str, ...]) -> "Summary":
        """The same with the thresholds that do not hold."""
        return replace(self, broken=broken)


def summarize(
    host: str,
    model: str,
    arrivals: str,
    records: Sequence[Record],
    clients: Sequence[Health],
    span: tuple[float, float],
    settings: Settings,
) -> Summary:
    """Of records in any order, between two times."""
    started, stopped = span
    seconds = max(1e-9, stopped - started)
    total = Figures.of(records, settings)
    names = sorted({record.name for record in records})
    by_name = {name: Figures.of([one for one in records if one.name == name], settings) for name in names}
    client = _client(records, clients)
    in_time = [record for record in records if record.outcome is Outcome.ANSWERED and record.ended <= stopped]
    good = sum(is_good(record, settings) for record in in_time)
    ended = total.answered + total.failed + total.unfinished
    errors = Counter(f"{one.name}: {one.message}" for one in records if one.outcome is Outcome.FAILED)
    return Summary(
        host,
        model,
        arrivals,
        started,
        seconds,
        total,
        by_name,
        len(in_time) / seconds,
        sum(tokens_between(record, started, stopped) for record in records) / seconds,
        good / seconds,
        total.good / ended if ended else nan,
        settings.slo_ttft_ms,
        settings.slo_tpot_ms,
        sum(record.outcome is Outcome.ANSWERED and not record.is_counted for record in records),
        client,
        tuple(_warnings(client, settings)),
        dict(errors.most_common()),
    )


def tokens_between(record: Record, first: float, last: float) -> float:
    """Its tokens are spread over its chunks: those that came between two times."""
    if not record.times:
        return 0.0
    return record.num_tokens * sum(first <= time <= last for time in record.times) / len(record.times)


def _client(records: Sequence[Record], clients: Sequence[Health]) -> Client:
    late = Times.of(record.sent - record.due for record in records if record.sent == record.sent)
    lags = [one.lag_p99 for one in clients if one.lateness]
    return Client(
        len(clients),
        max(lags, default=nan) * 1000,
        max((one.cpu_share for one in clients), default=0.0),
        late.p99,
    )


def _warnings(client: Client, settings: Settings) -> Iterable[str]:
    reasons, advice = [], "Others take its core: give it one of its own, or another machine."
    if client.lag_p99_ms > settings.max_client_lag_ms:
        reasons.append(f"its loop is {client.lag_p99_ms:.1f} ms late (p99; bound {settings.max_client_lag_ms:g} ms)")
    if client.cpu_share > settings.max_client_cpu:
        reasons.append(f"it uses {client.cpu_share:.0%} of a core (bound {settings.max_client_cpu:.0%})")
        advice = "Give it more processes (--processes), or more machines."
    if reasons:
        yield f"the client is the bottleneck, figures are not the server's: {' and '.join(reasons)}. {advice}"


def lines(summary: Summary) -> list[str]:
    """For the terminal."""
    total, client = summary.total, summary.client
    objective = f"TTFT <= {summary.slo_ttft_ms:g} ms, TPOT <= {summary.slo_tpot_ms:g} ms"
    cached = total.cached_tokens / total.prompt_tokens if total.prompt_tokens else 0.0
    share = "-" if summary.goodput_share != summary.goodput_share else f"{summary.goodput_share:.0%}"
    told = [
        f"{summary.host}, model {summary.model}, {summary.arrivals}, {summary.seconds:.0f} s",
        f"requests     {total.answered} answered, {total.failed} failed, {total.refused} refused (429), "
        f"{total.hung_up} hung up, {total.unfinished} unfinished",
        *(f"{name:<12} {_times(times)}" for name, times in _kinds(total)),
        f"tokens/s     {summary.tokens_per_second:.1f} (and {total.prompt_tokens} prompt tokens, {cached:.0%} cached)",
        f"goodput      {summary.goodput:.2f} requests/s, {share} within {objective}",
        f"client       loop {client.lag_p99_ms:.1f} ms late (p99), {client.cpu_share:.0%} of a core, "
        f"requests sent {client.sent_late_p99_ms:.1f} ms late (p99)",
    ]
    if summary.uncounted:
        told.append(f"note         {summary.uncounted} answers without usage: each chunk counts as a token")
    told += [f"WARNING      {warning}" for warning in summary.warnings]
    told += [f"FAILED       {broken}" for broken in summary.broken]
    return told


def _kinds(figures: Figures) -> tuple[tuple[str, Times], ...]:
    return (
        ("TTFT ms", figures.ttft_ms),
        ("ITL ms", figures.itl_ms),
        ("TPOT ms", figures.tpot_ms),
        ("latency ms", figures.latency_ms),
    )


def _times(times: Times) -> str:
    if not times.count:
        return "-"
    return f"p50 {times.p50:.1f}, p90 {times.p90:.1f}, p99 {times.p99:.1f}, longest {times.longest:.1f}"


def without_nan(value: Any) -> Any:
    """As JSON, which has no NaN."""
    if isinstance(value, dict):
        return {key: without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(item) for item in value]
    return None if isinstance(value, float) and value != value else value
