"""Serving: what is started, what it costs, what the tables say."""

import io
import os
import subprocess
import sys

import pytest

from benchmarks.server_process import cpu_seconds, descendants, parse_parent, wait_ready
from benchmarks.serving import PART, CostedRound, beside_table, load_table, workload
from ipc.errors import ConfigError
from loadtest.beside import StreamRound
from loadtest.compare import Round, Workload

LOAD = Workload("m", 8, 16, 128, 64, 99)


def costed(speed: float, gateway: float | None) -> CostedRound:
    load = Round(1000, speed, 0.1, 0.01, 0.02, 0.5)
    return CostedRound(load, None if gateway is None else (gateway, 2.0))


def test_the_table_compares_with_the_first_server_and_counts_a_token() -> None:
    rounds = {"one": [costed(100, 0.03), costed(200, 0.05)], "two": [costed(50, None), costed(400, None)]}
    table = load_table(LOAD, rounds)
    first, second = table.rows
    assert table.title == "8 clients, 128 tokens in, 64 out, 16 requests a round, 2 rounds in turns"
    assert (first[2], second[2]) == ("1.00 (1.00 - 1.00)", "1.25 (0.50 - 2.00)")
    assert first[-3:] == ["0.04 (0.03 - 0.05)", "2.00 (2.00 - 2.00)", "40.0 (30.0 - 50.0)"]
    assert second[-3:] == ["-"] * 3
    assert len(first) == len(second) == len(table.columns)


def test_the_table_of_a_long_prompt() -> None:
    alone, beside = StreamRound(0.01, 0.02, float("nan"), float("nan")), StreamRound(0.01, 0.05, 0.06, 1.5)
    table = beside_table(LOAD, 4000, {"one": [(alone, beside)]})
    (row,) = table.rows
    assert len(row) == len(table.columns)
    assert [row[0], row[4], row[-1]] == ["one", "5.00 (5.00 - 5.00)", "1500"]
    assert "one prompt of 4000 tokens" in table.title


def test_the_command_line_is_the_workload() -> None:
    options = PART.parse(["--input-tokens", "7", "--output-tokens", "9", "--server", "a=http://b", "--octavo", "x="])
    assert workload(options, 8) == Workload("smollm2", 8, 16, 7, 9, 49000)
    assert workload(options, 1).num_requests == 4
    assert (options.server, options.octavo) == ([("a", "http://b")], [("x", "")])
    with pytest.raises(SystemExit):
        PART.parse(["--server", "http://b"])


def test_ready_is_a_line_of_the_log() -> None:
    log = io.StringIO("a warning\noctavo is ready: http://127.0.0.1:81\ncurl ...\nlater\n")
    assert wait_ready(log) == "http://127.0.0.1:81"
    assert log.read() == "later\n"
    with pytest.raises(ConfigError, match="did not start: no model"):
        wait_ready(io.StringIO("a warning\nno model\n"))
    with pytest.raises(ConfigError, match="said nothing"):
        wait_ready(io.StringIO(""))


def test_processes_and_their_time() -> None:
    assert parse_parent("12 (a) b) S 7 12 12 0") == 7
    command = [sys.executable, "-c", "import sys; sum(range(10**6)); print('done', flush=True); sys.stdin.read()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stdout.readline() == "done\n"
        assert child.pid in descendants(os.getpid())
        assert 0 < cpu_seconds(child.pid) < 60
    assert child.pid not in descendants(os.getpid())
    with pytest.raises(OSError, match=f"process {child.pid}"):
        cpu_seconds(child.pid)


def test_a_benchmark_that_is_told_to_end_ends_what_it_started() -> None:
    code = (
        "import subprocess, sys\n"
        "from benchmarks.command import Part, run_part\n"
        "def measure(options):\n"
        "    child = subprocess.Popen([sys.executable, '-c', 'import sys; sys.stdin.read()'], stdin=subprocess.PIPE)\n"
        "    try:\n"
        "        print(f'child {child.pid}', flush=True)\n"
        "        child.wait()\n"
        "    finally:\n"
        "        child.kill()\n"
        "        print(f'ended {child.wait()}', flush=True)\n"
        "    yield\n"
        "sys.exit(run_part(Part('p', '', lambda parser: None, measure, 1), []))\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        while not (line := process.stdout.readline()).startswith("child "):
            assert line, "it ended without its child"
        process.terminate()
        assert process.stdout.read() == "ended -9\n"
    assert process.returncode == 128 + 15
