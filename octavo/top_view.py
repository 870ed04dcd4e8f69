"""One frame of ``octavo top``: numbers in, something that rich can print out. Asks nobody anything."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gateway.request_view import RequestsView, RequestView
from octavo.terminal_text import printable
from octavo.top_client import Requests
from octavo.top_metrics import Interval

UNKNOWN = "–"
HEAD_LINES = 12  # above the table of requests


@dataclass(frozen=True, slots=True)
class Column:
    """``needs``: columns of the terminal from which on there is room for it."""

    title: str
    show: Callable[[RequestView], str]
    needs: int = 0
    is_number: bool = True


def frame(url: str, interval: Interval, requests: Requests, *, width: int, height: int, problem: str = "") -> Group:
    """``width`` and ``height``: of the terminal. ``problem``: why these numbers are old, if they are."""
    parts: list[RenderableType] = [_title(url, interval)]
    if problem:
        parts.append(Text(printable(problem), style="bold red"))
    parts.append(_figures(interval, requests.view))
    if requests.view is None:
        parts.append(Text(printable(requests.note), style="dim"))
    else:
        parts.append(_table(requests.view.data, width, max(3, height - HEAD_LINES)))
    return Group(*parts)


def _title(url: str, interval: Interval) -> Text:
    text = Text("octavo top", style="bold", no_wrap=True, overflow="ellipsis")
    return text.append(printable(f"  {url}  {', '.join(sorted(interval.now.models))}"), style="dim")


def _figures(interval: Interval, view: RequestsView | None) -> Table:
    """A line for each subject."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="cyan", no_wrap=True)
    grid.add_column()
    for subject, text in (
        ("tokens/s", _tokens(interval)),
        ("first token", _quantiles(interval, "time_to_first_token_seconds")),
        ("inter-token", _quantiles(interval, "inter_token_latency_seconds", "time_per_output_token_seconds")),
        ("queue", _quantiles(interval, "request_queue_time_seconds") + _prediction(interval)),
        ("requests", _numbers(interval, view)),
        ("KV cache", _kv(interval, view)),
        ("counts", _counts(interval)),
    ):
        grid.add_row(subject, Text(printable(text)))
    return grid


def _tokens(interval: Interval) -> str:
    output, prompt = interval.rate("generation_tokens_total"), interval.rate("prompt_tokens_total")
    return f"output {count(output)}   prompt {count(prompt)}"


def _numbers(interval: Interval, view: RequestsView | None) -> str:
    now = interval.now
    text = f"running {count(now.value('num_requests_running'))}   waiting {count(now.value('num_requests_waiting'))}"
    if reasons := now.by_label("num_requests_waiting_by_reason", "reason"):
        text += " (" + ", ".join(f"{reason} {count(number)}" for reason, number in reasons.items()) + ")"
    if view is not None:
        for name, number in (("resuming", view.summary.num_resuming), ("held", view.summary.num_held)):
            text += f"   {name} {number}" if number else ""
    return text


def _counts(interval: Interval) -> str:
    return "   ".join(
        f"{name} {_counted(interval, metric)}"
        for name, metric in (
            ("preempted", "num_preemptions_total"),
            ("refused", "requests_refused_total"),
            ("restarts", "engine_restarts_total"),
            ("done", "request_success_total"),
        )
    )


def _quantiles(interval: Interval, *names: str) -> str:
    return "   ".join(f"p{share} {seconds(interval.quantile(share / 100, *names))}" for share in (50, 95))


def _prediction(interval: Interval) -> str:
    wait = interval.now.value("predicted_queue_wait_seconds")
    return "" if math.isnan(wait) else f"   a new request would wait {seconds(wait)}"


def _kv(interval: Interval, view: RequestsView | None) -> str:
    used = interval.now.share("kv_cache_usage_perc", "gpu_cache_usage_perc")
    parts = [f"used {percent(used)}"]
    if view is not None and view.summary.num_kv_blocks:
        kv = view.summary
        parts.append(
            f"free {kv.num_free_kv_blocks} of {kv.num_kv_blocks} blocks, {kv.num_cached_kv_blocks} with a cached prefix"
        )
    parts += [f"hits {text}" for text in _hits(interval)]
    return "   ".join(parts)


def _hits(interval: Interval) -> list[str]:
    """Share of the prompt tokens that were looked up; where none were in the interval, of all so far."""
    lookups, hits = ((f"prefix_cache_{what}_total", f"gpu_prefix_cache_{what}_total") for what in ("queries", "hits"))
    for counted, when in ((interval.grown, ""), (interval.now.value, " so far")):
        if counted(*lookups) > 0:
            return [f"{percent(counted(*hits) / counted(*lookups))} of prompt tokens{when}"]
    return []


def _counted(interval: Interval, *names: str) -> str:
    """Altogether, and in the interval if that is anything."""
    total, grown = interval.now.value(*names), interval.grown(*names)
    return count(total) + (f" (+{count(grown)})" if grown > 0 else "")


# ---- requests


def _why(request: RequestView) -> str:
    """What it waits for, or else, in brackets, what it has waited for last."""
    if request.wait is not None:
        return f"{request.wait.reason} {seconds(request.wait.seconds)}"
    return "" if request.last_wait is None else f"({request.last_wait.reason} {seconds(request.last_wait.seconds)})"


def _output(request: RequestView) -> str:
    return f"{count(request.output_tokens)}/{count(request.max_tokens * len(request.choices))}"


def _optional(value: float | None, show: Callable[[float], str]) -> str:
    return UNKNOWN if value is None else show(value)


COLUMNS = (
    Column("request", lambda one: one.id, 120, is_number=False),
    Column("age", lambda one: seconds(one.age_seconds)),
    Column("state", lambda one: one.state.value, is_number=False),
    Column("why", _why, 50, is_number=False),
    Column("output", _output, 40),
    Column("tok/s", lambda one: _optional(one.tokens_per_second, count), 60),
    Column("first", lambda one: _optional(one.time_to_first_token_seconds, seconds), 70),
    Column("prompt", lambda one: count(one.prompt_tokens), 80),
    Column("cached", lambda one: count(one.cached_tokens), 90),
    Column("preempted", lambda one: count(one.num_preemptions), 110),
    Column("restarts", lambda one: count(one.num_restarts), 120),
    Column("deadline", lambda one: _optional(one.deadline_seconds, seconds), 130),
    Column("tenant", lambda one: one.tenant, 100, is_number=False),
)


def _table(requests: list[RequestView], width: int, num_rows: int) -> RenderableType:
    """The oldest first, as the server has them."""
    if not requests:
        return Text("no request is in flight", style="dim")
    columns = [column for column in COLUMNS if width >= column.needs]
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="cyan")
    for column in columns:
        table.add_column(column.title, justify="right" if column.is_number else "left", no_wrap=True)
    num_shown = num_rows if len(requests) <= num_rows else num_rows - 1
    for request in requests[:num_shown]:
        table.add_row(*(Text(printable(column.show(request))) for column in columns))
    if len(requests) <= num_shown:
        return table
    return Group(table, Text(f"and {len(requests) - num_shown} younger ones", style="dim"))


# ---- numbers


def count(value: float) -> str:
    """``1234.5`` → ``1.2k``."""
    if math.isnan(value):
        return UNKNOWN
    if value >= 10_000:
        return f"{value / 1000:.0f}k" if value >= 100_000 else f"{value / 1000:.1f}k"
    return f"{value:.0f}" if value >= 100 or value == int(value) else f"{value:.1f}"


def seconds(value: float) -> str:
    """``0.0123`` → ``12 ms``."""
    if math.isnan(value):
        return UNKNOWN
    if value < 0:
        return f"-{seconds(-value)}"
    if value < 1:
        return f"{value * 1000:.1f} ms" if value < 0.01 else f"{value * 1000:.0f} ms"
    return f"{value:.1f} s" if value < 100 else f"{value / 60:.0f} min"


def percent(value: float) -> str:
    """``0.5`` → ``50 %``."""
    return UNKNOWN if math.isnan(value) else f"{value * 100:.0f} %"
