"""Locust itself, in processes of its own, against servers whose delays are known. All runs are under way at once."""

import contextlib
import csv
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from loadtest_fake import Fake, serving

ROOT = Path(__file__).resolve().parents[2]
# What a busy machine does to the client is not what is tested here.
CALM = ("--max-client-lag-ms", "5000", "--max-client-cpu", "50")


@dataclass
class LocustRun:
    """A process of locust, its server, and what it leaves."""

    fake: Fake
    process: subprocess.Popen[str]
    folder: Path
    output: str = ""

    def end(self) -> int:
        """What it ended with."""
        if not self.output:
            self.output = self.process.communicate(timeout=100)[0]
        return self.process.returncode

    def close(self) -> None:
        """Also where a test has failed."""
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()

    @property
    def summary(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "summary.json").read_text())
        return found

    @property
    def requests(self) -> list[dict[str, str]]:
        return list(csv.DictReader((self.folder / "requests.csv").read_text().splitlines()))

    @property
    def table(self) -> dict[tuple[str, str], dict[str, str]]:
        """Locust's own statistics, by type and name."""
        rows = csv.DictReader((self.folder / "locust_stats.csv").read_text().splitlines())
        return {(row["Type"], row["Name"]): row for row in rows}


# What a test has no time for.
SHORT = ("--run-time", "2s", "--stop-timeout", "1", "--spawn-rate", "50", "--think-time", "0.05", *CALM)


def start(fake: Fake, folder: Path, *flags: str, host: str | None = None, **variables: str) -> LocustRun:
    """``python -m loadtest`` for two seconds, unless the flags say something else."""
    files = ["--report", str(folder), "--html", str(folder / "locust.html"), "--csv", str(folder / "locust")]
    variables["LOCUST_HOST"] = fake.url if host is None else host
    return launch(fake, folder, "loadtest", *SHORT, *files, *flags, **variables)


def launch(fake: Fake, folder: Path, *module_and_flags: str, **variables: str) -> LocustRun:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LOCUST_")}
    environment.update(variables)
    process = subprocess.Popen(
        [sys.executable, "-m", *module_and_flags],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return LocustRun(fake, process, folder)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, LocustRun]]:
    """Every run of this file, by name."""
    with contextlib.ExitStack() as stack:
        started: dict[str, LocustRun] = {}

        def run(name: str, settings: dict[str, Any], *flags: str, **more: Any) -> None:
            fake = stack.enter_context(serving(**settings))
            started[name] = start(fake, tmp_path_factory.mktemp(name.replace(" ", "-")), *flags, **more)

        quick = {"itl": 0.01, "num_tokens": 4}
        truth = {"ttft": 0.15, "itl": 0.03, "num_tokens": 8}
        run("truth", truth, "--users", "4", "ShortUser", "ChatUser", LOCUST_API_KEY="a,b")
        slow = {"ttft": 1.5, "num_tokens": 2}
        run("open", slow, "--users", "5", "--rate", "20", "--tags", "short", "--slo-ttft-ms", "1000")
        small = ("--document-tokens", "300", "--patience", "0.01")
        run("mix", quick, "--users", "20", "--flood-api-key", "f", "--max-failures", "0", *small)
        refusing = {**quick, "num_refusals": 6, "retry_after": "0.3"}
        run("refused", refusing, "--users", "6", "ShortUser", "--max-refusals", "2")
        failing = {"status": 500, "error": "out of paper"}
        run("failing", failing, "--users", "3", "ShortUser", "--min-goodput", "0.5")
        run("allowed", failing, "--users", "1", "ShortUser", "--max-failures", "100", "--max-client-lag-ms", "0.000001")
        run("processes", quick, "--users", "4", "--processes", "2", "--run-time", "4s", "ShortUser", LOCUST_RATE="20")
        run("nobody", {}, "ShortUser", host="http://127.0.0.1:9")
        run("no tag", {}, "--tags", "nothing")
        run("no rate", {}, "--rate", "0")
        faulty = tmp_path_factory.mktemp("files") / "faulty.json"
        faulty.write_text('[{"conversations": []}, 5]')
        run("faulty", {}, "--dataset", str(faulty))
        compared = tmp_path_factory.mktemp("compared")
        first, second = (stack.enter_context(serving(**quick)) for _ in range(2))
        started["compared"] = launch(
            first,
            compared,
            *("loadtest.compare", "--locust", "--host", f"a={first.url}", "--host", f"b={second.url}"),
            *("--api-key", "secret", "--output", str(compared), "--", *SHORT, "--run-time", "1s", "ShortUser"),
        )
        try:
            yield started
        finally:
            for one in started.values():
                one.close()
        assert first.keys
        assert set(first.keys + second.keys) == {"bearer secret"}


def test_figures_are_those_of_the_server(runs: dict[str, LocustRun]) -> None:
    run = runs["truth"]
    assert run.end() == 0, run.output
    total = run.summary["total"]
    waits, gaps = run.fake.waits, run.fake.gaps
    assert total["answered"] >= 8
    assert total["failed"] == 0
    assert total["ttft_ms"]["p50"] == pytest.approx(statistics.median(waits) * 1000, abs=60)
    assert total["itl_ms"]["p50"] == pytest.approx(statistics.median(gaps) * 1000, abs=12)
    assert total["itl_ms"]["mean"] == pytest.approx(statistics.mean(gaps) * 1000, abs=12)
    assert total["tpot_ms"]["p50"] == pytest.approx(statistics.mean(gaps) * 1000, abs=12)
    assert total["output_tokens"] >= 8 * total["answered"]
    assert run.summary["tokens_per_second"] == pytest.approx(8 * total["answered"] / run.summary["seconds"], rel=0.5)
    assert run.summary["goodput_share"] == pytest.approx(total["good"] / (total["answered"] + total["unfinished"]))
    assert run.summary["model"] == "first"
    assert set(run.fake.keys) == {"bearer a", "bearer b"}  # two tenants


def test_locusts_own_tables_have_them_too(runs: dict[str, LocustRun]) -> None:
    run = runs["truth"]
    run.end()
    table = run.table
    assert float(table["TTFT", "short"]["Average Response Time"]) == pytest.approx(
        statistics.mean(run.fake.waits) * 1000, abs=60
    )
    assert {kind for kind, _ in table} == {"POST", "TTFT", "ITL", "TPOT", ""}
    requests = sum(int(row["Request Count"]) for (kind, _), row in table.items() if kind == "POST")
    assert int(table["", "Aggregated"]["Request Count"]) == requests  # tokens are no requests
    page = (run.folder / "locust.html").read_text()
    assert '"TTFT"' in page
    assert "TTFT ms      p50" in run.output
    assert f"report       {run.folder / 'report.html'}" in run.output
    assert "Time to the first token" in (run.folder / "report.html").read_text()


def test_an_open_loop_waits_for_nobody(runs: dict[str, LocustRun]) -> None:
    """Five users who wait for answers of 1.5 s would send ten requests in two seconds."""
    run = runs["open"]
    assert run.end() == 0, run.output
    assert 18 <= len(run.fake.bodies) <= 70
    assert {row["name"] for row in run.requests} == {"short"}
    arrivals = sorted(float(row["due_s"]) for row in run.requests)
    gaps = [after - before for before, after in zip(arrivals, arrivals[1:], strict=False)]
    assert statistics.stdev(gaps) > 0.4 * statistics.mean(gaps)  # those of a Poisson process are as long as they vary
    assert run.summary["total"]["ttft_ms"]["p50"] >= 1500
    assert run.summary["goodput"] == 0
    assert "20 arrivals/s in an open loop" in run.summary["arrivals"]
    assert statistics.median(float(row["sent_s"]) - float(row["due_s"]) for row in run.requests) < 0.3


def test_the_whole_mix(runs: dict[str, LocustRun]) -> None:
    run = runs["mix"]
    assert run.end() == 0, run.output
    names = {row["name"] for row in run.requests}
    both = {f"{kind}, {turn}" for kind in ("chat", "document") for turn in ("first turn", "later turns")}
    assert names == both | {"short", "long", "structured", "n = 3", "impatient", "flood"}
    assert {body.get("n", 1) for body in run.fake.bodies} == {1, 3}
    assert any("response_format" in body for body in run.fake.bodies)
    assert "bearer f" in run.fake.keys
    systems = [body["messages"][0]["content"] for body in run.fake.bodies if body["messages"][0]["role"] == "system"]
    assert len(set(systems)) < len(systems) / 2
    flood = [arrived for key, arrived in zip(run.fake.keys, run.fake.arrivals, strict=True) if key == "bearer f"]
    assert sum(arrived - flood[0] < 0.5 for arrived in flood) >= 8  # a burst
    assert run.summary["total"]["hung_up"] > 0


def test_refusals_are_obeyed_and_no_failures(runs: dict[str, LocustRun]) -> None:
    run = runs["refused"]
    assert run.end() == 1
    assert (run.summary["total"]["refused"], run.summary["total"]["failed"]) == (6, 0)
    assert run.summary["broken"] == ["--max-refusals 2: number of refusals is 6, 4 above it"]
    assert "FAILED       --max-refusals 2" in run.output
    assert run.table["429", "short"]["Request Count"] == "6"
    again = [row for row in run.requests if row["arrived_s"] != row["due_s"]]
    assert len(again) == 6
    assert all(float(row["due_s"]) - float(row["arrived_s"]) >= 0.3 for row in again)
    assert all(float(row["sent_s"]) >= float(row["due_s"]) for row in again)


def test_failures_have_the_servers_words(runs: dict[str, LocustRun]) -> None:
    run = runs["failing"]
    assert run.end() == 1
    assert run.summary["total"]["answered"] == 0
    assert list(run.summary["errors"]) == ["short: HTTP 500: out of paper"]
    assert "HTTP 500: out of paper" in (run.folder / "locust_failures.csv").read_text()
    assert "FAILED       --min-goodput 0.5: goodput is 0 requests/s, 0.5 below it" in run.output


def test_so_many_failures_may_be_allowed_and_a_slow_client_is_told(runs: dict[str, LocustRun]) -> None:
    run = runs["allowed"]
    assert run.end() == 0, run.output
    assert run.summary["total"]["failed"] > 0
    assert "WARNING      the client is the bottleneck, figures are not the server's" in run.output
    assert "the client is the bottleneck" in (run.folder / "report.html").read_text()
    runs["truth"].end()
    assert "bottleneck" not in runs["truth"].output


def test_several_processes_are_one_run(runs: dict[str, LocustRun]) -> None:
    run = runs["processes"]
    assert run.end() == 0, run.output
    assert run.summary["client"]["processes"] == 2
    total = run.summary["total"]
    assert total["answered"] == len(run.fake.bodies) - total["unfinished"]
    assert 15 <= len(run.fake.bodies) <= 120  # one rate for both
    assert run.table["TTFT", "short"]["Request Count"] == str(total["answered"])
    assert "Traceback" not in run.output


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nobody", "cannot test http://127.0.0.1:9: [Errno 111] Connection refused"),
        ("no tag", "loadtest: no user does anything that --tags and --exclude-tags leave"),
        ("no rate", "argument --rate: must be above 0, is 0"),
        ("faulty", "faulty.json: item 1 must be an object, is a number"),
    ],
)
def test_what_cannot_run_says_why(runs: dict[str, LocustRun], name: str, said: str) -> None:
    assert runs[name].end() == (2 if name == "no rate" else 1), runs[name].output
    assert said in runs[name].output


def test_servers_side_by_side(runs: dict[str, LocustRun]) -> None:
    run = runs["compared"]
    assert run.end() == 0, run.output
    rows = [line.split(" | ") for line in run.output.splitlines() if line.startswith("| ")]
    assert [row[0] for row in rows] == ["| server", "| a", "| b"]
    assert {len(row) for row in rows} == {14}
    assert rows[1][10] == rows[1][12] == "1.00"  # the first is what the others are compared with
    assert (run.folder / "1-b" / "report.html").is_file()
    bodies = [json.loads((run.folder / f"1-{name}" / "summary.json").read_text())["host"] for name in "ab"]
    assert bodies[0] == run.fake.url != bodies[1]


def test_help_has_every_flag() -> None:
    command = [sys.executable, "-m", "loadtest", "--help"]
    text = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60).stdout
    for flag in ("--rate", "--slo-ttft-ms", "--max-ttft-p99-ms", "--min-goodput", "--dataset", "--api-key", "--tags"):
        assert f"  {flag} " in text or f", {flag} " in text
