"""The report of a run: a page with plots that opens offline, a CSV with a line a request, the figures as JSON."""

import csv
import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from html import escape
from pathlib import Path
from string import Template

from loadtest.mix import series
from loadtest.mix.health import Health
from loadtest.mix.plots import plot
from loadtest.mix.record import Record
from loadtest.mix.summary import Figures, Summary, Times, lines, without_nan

PAGE, TABLE, FIGURES = "report.html", "requests.csv", "summary.json"
COLUMNS = (
    *("arrived_s", "due_s", "sent_s", "ended_s", "name", "outcome", "status", "message"),
    *("ttft_ms", "tpot_ms", "latency_ms", "itl_max_ms"),
    *("prompt_tokens", "cached_tokens", "output_tokens", "chunks", "choices", "bytes"),
)


def write(folder: Path, summary: Summary, records: Sequence[Record], clients: Sequence[Health]) -> None:
    """All three, into a folder that is made."""
    folder.mkdir(parents=True, exist_ok=True)
    figures = json.dumps(without_nan(asdict(summary)), indent=1)
    (folder / FIGURES).write_text(figures + "\n", encoding="utf-8")
    with (folder / TABLE).open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        writer.writerows(_row(record, summary.started) for record in sorted(records, key=lambda one: one.due))
    (folder / PAGE).write_text(page(summary, records, clients), encoding="utf-8")


def _row(record: Record, started: float) -> list[object]:
    def milliseconds(seconds: float | None) -> str:
        return "" if seconds is None or seconds != seconds else f"{seconds * 1000:.3f}"

    moments = [f"{moment - started:.4f}" for moment in (record.arrived, record.due, record.sent, record.ended)]
    return [
        *moments,
        record.name,
        record.outcome.value,
        record.status,
        record.message,
        milliseconds(record.ttft),
        milliseconds(record.tpot),
        milliseconds(record.latency),
        milliseconds(max(record.itl(), default=None)),
        record.prompt_tokens,
        record.cached_tokens,
        record.num_tokens,
        len(record.times),
        record.num_choices,
        record.num_bytes,
    ]


def page(summary: Summary, records: Sequence[Record], clients: Sequence[Health]) -> str:
    """HTML."""
    bins = series.Bins.of(summary.started, summary.started + summary.seconds)
    plots = (
        plot("Time to the first token", "ms", series.ttft(bins, records), summary.slo_ttft_ms),
        plot("Between tokens", "ms", series.itl(bins, records), summary.slo_tpot_ms),
        plot("Output", "tokens/s", series.tokens(bins, records)),
        plot("Requests that ended", "requests/s", series.outcomes(bins, records)),
        plot("Requests under way", "requests", series.in_flight(bins, records)),
        plot("How late the client's own loop was", "ms", series.lag(bins, clients)),
    )
    template = Template(Path(__file__).with_name("report.html").read_text(encoding="utf-8"))
    return template.substitute(
        title=escape(f"Load test of {summary.host}"),
        about=escape(
            f"{summary.model}, {summary.arrivals}, {summary.seconds:.0f} s from "
            f"{time.strftime('%Y-%m-%d %H:%M:%S %Z', time.localtime(summary.started))}"
        ),
        notices="".join(
            f'<p class="notice">{escape(text)}</p>'
            for text in (*(f"Threshold: {one}" for one in summary.broken), *summary.warnings)
        ),
        tiles=_tiles(summary),
        plots="".join(plots),
        rows="".join(_line(name, one) for name, one in (*summary.by_name.items(), ("all", summary.total))),
        errors=_errors(summary),
        text=escape("\n".join(lines(summary))),
    )


def _tiles(summary: Summary) -> str:
    total = summary.total
    shown = (
        ("TTFT p50 / p99", f"{total.ttft_ms.p50:.0f} / {total.ttft_ms.p99:.0f} ms"),
        ("ITL p50 / p99", f"{total.itl_ms.p50:.1f} / {total.itl_ms.p99:.1f} ms"),
        ("TPOT p50 / p99", f"{total.tpot_ms.p50:.1f} / {total.tpot_ms.p99:.1f} ms"),
        ("output", f"{summary.tokens_per_second:.1f} tokens/s"),
        ("goodput", f"{summary.goodput:.2f} requests/s ({summary.goodput_share:.0%})"),
        ("failed / refused", f"{total.failed} / {total.refused}"),
    )
    return "".join(f"<div><b>{escape(value)}</b>{escape(name)}</div>" for name, value in shown)


def _line(name: str, figures: Figures) -> str:
    def times(found: Times, digits: int) -> str:
        return " / ".join("–" if one != one else f"{one:.{digits}f}" for one in (found.p50, found.p99))

    cached = f"{figures.cached_tokens / figures.prompt_tokens:.0%}" if figures.prompt_tokens else "–"
    cells = (
        name,
        figures.answered,
        figures.failed,
        figures.refused,
        figures.hung_up,
        figures.unfinished,
        figures.good,
        times(figures.ttft_ms, 0),
        times(figures.itl_ms, 1),
        times(figures.tpot_ms, 1),
        times(figures.latency_ms, 0),
        figures.prompt_tokens,
        cached,
        figures.output_tokens,
    )
    return "<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in cells) + "</tr>"


def _errors(summary: Summary) -> str:
    if not summary.errors:
        return "<p>None.</p>"
    rows = "".join(f"<tr><td>{count}</td><td>{escape(text)}</td></tr>" for text, count in summary.errors.items())
    return f"<table><tr><th>times</th><th>what</th></tr>{rows}</table>"
