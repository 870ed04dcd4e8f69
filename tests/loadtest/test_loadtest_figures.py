"""Figures of a run made by hand: percentiles, rates, goodput, thresholds, the course of it, and the report."""

import csv
import json
import re
from array import array
from math import nan
from pathlib import Path
from xml.etree import ElementTree

import pytest

from loadtest.mix import report, series
from loadtest.mix.health import INTERVAL, Health
from loadtest.mix.plots import plot
from loadtest.mix.record import Outcome, Record
from loadtest.mix.recorder import ASIDE, Recorder, keep_aside
from loadtest.mix.settings import Settings
from loadtest.mix.summary import Summary, Times, lines, summarize
from loadtest.mix.thresholds import broken

START = 1000.0
SLO = Settings(slo_ttft_ms=1000, slo_tpot_ms=100)


def answered(due: float, ttft: float, gap: float, tokens: int, name: str = "chat", waited: float = 0.0) -> Record:
    """A request with a token a chunk."""
    times = [START + due + ttft + number * gap for number in range(tokens)]
    record = Record(name, START + due - waited, START + due, START + due, times[-1], Outcome.ANSWERED, 200, "stop")
    record.times, record.gaps = array("d", times), array("f", [nan] + [gap] * (tokens - 1))
    record.completion_tokens, record.is_counted = tokens, True
    record.prompt_tokens, record.cached_tokens = 20, 5
    return record


def ended(outcome: Outcome, message: str = "") -> Record:
    return Record("other", START, START, START, START + 1, outcome, 0, message)


def summary_of(records: list[Record], settings: Settings = SLO, healths: list[Health] | None = None) -> Summary:
    return summarize("http://a", "m", "2 users", records, healths or [Health()], (START, START + 10), settings)


def test_figures() -> None:
    records = [
        answered(0, 0.5, 0.05, 11),
        answered(1, 2.0, 0.05, 11),  # its first token is late
        answered(2, 0.5, 0.2, 11),  # the others are
        answered(3, 0.5, 0.05, 11, waited=3.0),  # it was refused first
        answered(9, 0.5, 0.05, 21),  # half of it comes after the end
        ended(Outcome.FAILED, "HTTP 500: no"),
        ended(Outcome.REFUSED),
        ended(Outcome.HUNG_UP),
        ended(Outcome.UNFINISHED),
    ]
    found = summary_of(records)
    total = found.total
    assert (total.answered, total.failed, total.refused, total.hung_up, total.unfinished) == (5, 1, 1, 1, 1)
    assert total.ttft_ms.p50 == pytest.approx(500)
    assert total.ttft_ms.p99 == pytest.approx(2000)
    assert total.itl_ms.p50 == pytest.approx(50)
    assert total.tpot_ms.longest == pytest.approx(200)
    assert total.latency_ms.count == 5
    assert found.goodput == pytest.approx(0.1)
    assert found.goodput_share == pytest.approx(2 / 7)
    assert found.requests_per_second == pytest.approx(0.4)
    assert found.tokens_per_second == pytest.approx((44 + 11) / 10)
    assert (total.prompt_tokens, total.cached_tokens, total.output_tokens) == (100, 25, 65)
    assert found.errors == {"other: HTTP 500: no": 1}
    assert found.by_name["chat"].answered == 5
    assert "p50 500.0, p90 2000.0, p99 2000.0" in "\n".join(lines(found))


def test_nothing_is_not_a_number() -> None:
    found = summary_of([])
    assert found.total.ttft_ms.p50 != found.total.ttft_ms.p50
    assert list(broken(found, {"max_ttft_p99_ms": 5.0})) == ["--max-ttft-p99-ms 5: there is no TTFT p99"]
    assert Times.of([0.001]).p99 == 1.0


def test_thresholds_say_by_how_much() -> None:
    found = summary_of([answered(0, 0.5, 0.05, 11), ended(Outcome.FAILED)])
    bounds = {"max_ttft_p99_ms": 400.0, "min_goodput": 1.0, "max_failures": 0.0, "max_itl_p99_ms": 60.0}
    assert list(broken(found, {**bounds, "max_tpot_p99_ms": None, "users": 3.0})) == [
        "--max-ttft-p99-ms 400: TTFT p99 is 500 ms, 100 above it",
        "--min-goodput 1: goodput is 0.1 requests/s, 0.9 below it",
        "--max-failures 0: number of failures is 1, 1 above it",
    ]


def test_a_client_that_stands_still_is_late_all_the_time() -> None:
    health = Health()
    due = health.note(5.0, 5.001)
    assert due == pytest.approx(5.0 + INTERVAL)
    due = health.note(due, due + 0.5)  # half a second in which it did nothing
    assert len(health.lateness) == 52
    assert health.lag_p99 == pytest.approx(0.5, abs=0.011)
    health.cpu, health.wall = 0.95, 1.0
    (warning,) = summary_of([], healths=[health, Health()]).warnings
    assert "the client is the bottleneck, figures are not the server's" in warning
    assert "ms late (p99; bound 25 ms) and it uses 95% of a core (bound 80%)" in warning


def test_records_and_health_cross_processes() -> None:
    record = answered(0, 0.5, 0.05, 3)
    again = Record.from_wire(record.to_wire())
    assert (again.times, list(again.itl()), again.outcome, again.name) == (
        record.times,
        list(record.itl()),
        Outcome.ANSWERED,
        "chat",
    )
    health = Health(array("d", [1.0]), array("f", [0.5]), 2.0, 3.0)
    assert Health.from_wire(health.to_wire()) == health
    sender, master = Recorder(lambda **_: None), Recorder(lambda **_: None)
    sender.note(record)
    sender.health.add(health)
    for _ in range(2):  # the second report has nothing new
        data: dict[str, object] = {}
        sender.report_to_master("one", data)
        master.worker_report("one", data)
    assert [one.name for one in master.records] == ["chat"]
    assert master.clients == [health]


def test_events_for_locust() -> None:
    fired: list[tuple[str, float, str]] = []

    def fire(**event: object) -> None:
        assert isinstance(event["response_time"], float)
        fired.append((str(event["request_type"]), round(event["response_time"]), str(event["exception"] or "")))

    recorder = Recorder(fire)
    recorder.note(answered(0, 0.5, 0.05, 3))
    assert fired == [("POST", 600, ""), ("TTFT", 500, ""), ("ITL", 50, ""), ("ITL", 50, ""), ("TPOT", 50, "")]
    fired.clear()
    for outcome in (Outcome.FAILED, Outcome.REFUSED, Outcome.HUNG_UP, Outcome.UNFINISHED):
        recorder.note(ended(outcome, "why"))
    assert fired == [("POST", 1000, "why"), ("429", 1000, ""), ("HANGUP", 1000, "")]


def test_what_is_no_request_stays_out_of_locusts_totals() -> None:
    class Stats:
        def __init__(self) -> None:
            self.total: list[str] = []
            self.entries: dict[tuple[str, str], Stats] = {}

        def log_request(self, method: str, name: str, response_time: int, content_length: int) -> None:
            self.total.append(method)

        def log(self, response_time: int, content_length: int) -> None:
            self.total.append("aside")

    stats = Stats()
    stats.entries = {("x", kind): Stats() for kind in ASIDE}
    keep_aside(stats)
    for kind in ("POST", *ASIDE):
        stats.log_request(kind, "x", 1, 1)
    assert stats.total == ["POST"]
    assert all(entry.total == ["aside"] for entry in stats.entries.values())


def test_the_course_of_a_run() -> None:
    bins = series.Bins.of(START, START + 10)
    assert (bins.width, bins.count) == (1.0, 10)
    records = [answered(2.2, 0.5, 0.5, 3), ended(Outcome.REFUSED)]
    assert series.ttft(bins, records)[0].points == [(2.5, pytest.approx(500))]
    assert dict(series.tokens(bins, records)[0].points)[3.5] == 2
    running, waiting = series.in_flight(bins, records[:1])
    assert [value for _, value in running.points][2:5] == pytest.approx([0.8, 0.7, 0])
    assert sum(value for _, value in waiting.points) == pytest.approx(0.5)
    assert [one.label for one in series.outcomes(bins, records)] == ["answered", "refused"]
    assert series.Bins.of(0, 3600).count == 120


def test_a_plot_is_xml_with_its_bound() -> None:
    made = plot("a < b", "ms", [series.Series("p50", [(0.5, 1.0), (1.5, 40.0)])], bound=50)
    assert "objective: 50 ms" in made
    ElementTree.fromstring(made)
    assert "nothing was measured" in plot("empty", "ms", [series.Series("p50", [])])


def test_the_report_opens_offline(tmp_path: Path) -> None:
    records = [answered(0, 0.5, 0.05, 11), ended(Outcome.FAILED, "<script> & co")]
    health = Health(array("d", [START + 1]), array("f", [0.9]), 1.0, 1.0)
    found = summary_of(records, healths=[health]).with_broken(("--max-failures 0: 1 above it",))
    report.write(tmp_path, found, records, [health])
    page = (tmp_path / "report.html").read_text()
    assert "<script" not in page
    assert re.findall(r"""(?:src|href)=|url\(|@import""", page) == []
    assert page.count("<svg") == 6
    assert "the client is the bottleneck" in page
    assert "Threshold: --max-failures 0" in page
    ElementTree.fromstring(re.sub(r"<meta[^>]*>|<!doctype html>", "", page))
    rows = list(csv.DictReader((tmp_path / "requests.csv").read_text().splitlines()))
    assert [(row["outcome"], row["ttft_ms"], row["output_tokens"]) for row in rows] == [
        ("answered", "500.000", "11"),
        ("failed", "", "0"),
    ]
    figures = json.loads((tmp_path / "summary.json").read_text())
    assert figures["total"]["failed"] == 1
    assert figures["by_name"]["other"]["ttft_ms"]["p50"] is None
