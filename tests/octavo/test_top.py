"""``octavo top``: metrics of any prefix as numbers, frames for any terminal, and what is said when it cannot ask."""

import json
import math
import os
import pty
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec
import pytest
from rich.console import Console

from gateway.request_view import ChoiceView, RequestState, RequestsView, RequestView, Summary, WaitView
from observability.metrics import Metrics
from octavo.top import top
from octavo.top_client import Requests
from octavo.top_metrics import Interval, Snapshot
from octavo.top_view import frame

VLLM = """\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 1.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
# TYPE vllm:num_requests_waiting_by_reason gauge
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 2.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="deferred"} 0.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.5
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.3
# TYPE vllm:generation_tokens counter
vllm:generation_tokens_total{engine="0",model_name="m"} %d
# TYPE vllm:prompt_tokens counter
vllm:prompt_tokens_total{engine="0",model_name="m"} 40
# TYPE vllm:prefix_cache_queries counter
vllm:prefix_cache_queries_total{engine="0",model_name="m"} %d
# TYPE vllm:prefix_cache_hits counter
vllm:prefix_cache_hits_total{engine="0",model_name="m"} %d
# TYPE vllm:request_success counter
vllm:request_success_total{engine="0",finished_reason="stop",model_name="m"} 5
vllm:request_success_total{engine="0",finished_reason="length",model_name="m"} 6
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.1",model_name="m"} %d
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.2",model_name="m"} %d
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf",model_name="m"} %d
vllm:time_to_first_token_seconds_count{engine="0",model_name="m"} %d
vllm:time_to_first_token_seconds_sum{engine="0",model_name="m"} 1
"""
BEFORE, AFTER = VLLM % (100, 0, 0, 5, 5, 5, 5), VLLM % (400, 200, 50, 5, 9, 10, 10)


def interval(before: str = BEFORE, after: str = AFTER, seconds: float = 2.0) -> Interval:
    return Interval(Snapshot.parse(before, 10.0), Snapshot.parse(after, 10.0 + seconds))


def view(age: float = 12.0, **fields: Any) -> RequestView:
    values: dict[str, Any] = {
        "id": "00ff",
        "client_id": "",
        "trace_id": "",
        "tenant": "team-a",
        "model": "m",
        "priority": 0,
        "age_seconds": age,
        "state": RequestState.RUNNING,
        "wait": None,
        "last_wait": WaitView("kv_blocks", 0.25),
        "prompt_tokens": 1200,
        "cached_tokens": 16,
        "output_tokens": 30,
        "max_tokens": 100,
        "choices": [ChoiceView(0, 20, False), ChoiceView(1, 10, False)],
        "time_to_first_token_seconds": 0.5,
        "tokens_per_second": 30.25,
        "num_preemptions": 2,
        "num_restarts": 1,
        "deadline_seconds": None,
    }
    return RequestView(**{**values, **fields})


def summary(**fields: Any) -> Summary:
    values: dict[str, Any] = dict.fromkeys(Summary.__struct_fields__, 0)
    return Summary(**{**values, "is_connected": True, "waiting_by_reason": {}, **fields})


def shown(found: Interval, requests: Requests, width: int = 140, height: int = 40, problem: str = "") -> str:
    console = Console(width=width, height=height, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    with console.file:
        console.print(frame("http://x", found, requests, width=width, height=height, problem=problem))
        return console.export_text()


# ---- numbers


def test_numbers_of_an_interval() -> None:
    found = interval()
    assert found.rate("generation_tokens_total") == 150
    assert found.rate("prompt_tokens_total") == 0
    assert found.now.value("num_requests_running") == 4
    assert found.now.value("no_such_name", "request_success_total") == 11
    assert math.isnan(found.now.value("no_such_name"))
    assert found.now.share("kv_cache_usage_perc") == pytest.approx(0.4)
    assert found.now.by_label("num_requests_waiting_by_reason", "reason") == {"capacity": 2}
    assert found.now.models == {"m"}
    # 5 in the interval: 4 in (0.1, 0.2], one beyond.
    assert found.quantile(0.4, "time_to_first_token_seconds") == pytest.approx(0.15)
    assert found.quantile(0.95, "time_to_first_token_seconds") == 0.2
    assert math.isnan(found.quantile(0.5, "inter_token_latency_seconds"))


def test_prefix_hits_of_all_time_where_nothing_was_looked_up() -> None:
    assert "hits 25 % of prompt tokens so far" in shown(interval(AFTER, AFTER), Requests(None))
    assert "hits" not in shown(interval(BEFORE, BEFORE), Requests(None))


def test_a_server_that_was_started_anew() -> None:
    found = interval(AFTER, BEFORE)
    assert math.isnan(found.rate("generation_tokens_total"))
    assert math.isnan(found.quantile(0.5, "time_to_first_token_seconds"))
    text = shown(found, Requests(None))
    assert "output –" in text


def test_all_that_octavo_has_is_found() -> None:
    metrics = Metrics(model_name="m")
    before = Snapshot.parse(metrics.render().decode(), 0.0)
    metrics.observe_first_token(0.05)
    metrics.observe_inter_token(0.01)
    metrics.count_refusal("queue_wait")
    metrics.set_admission(num_sequences=1, num_queued_tokens=5, wait_seconds=2.5, num_booked=0)
    text = shown(Interval(before, Snapshot.parse(metrics.render().decode(), 1.0)), Requests(None))
    assert "a new request would wait 2.5 s" in text
    assert "refused 1 (+1)" in text
    assert re.search(r"first token +p50 \d+ ms +p95 \d+ ms", text)
    assert re.search(r"inter-token +p50 [\d.]+ ms", text)


@pytest.mark.parametrize("text", ["", "nonsense {", "a 1\n", "up 1 2 3 4\n"])
def test_what_is_not_of_a_model_server(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        Snapshot.parse(text, 0.0)


# ---- frames


def test_a_frame() -> None:
    requests = [view(), view(3.0, state=RequestState.WAITING, wait=WaitView("sequence_slots", 3.0), tenant="b")]
    held = summary(num_held=1, num_kv_blocks=64, num_free_kv_blocks=60, num_cached_kv_blocks=7)
    text = shown(interval(), Requests(RequestsView(held, requests)))
    for part in (
        "output 150   prompt 0",
        "running 4   waiting 2 (capacity 2)   held 1",
        "used 40 %   free 60 of 64 blocks, 7 with a cached prefix   hits 25 % of prompt tokens",
        "done 11",
    ):
        assert part in text, part
    first, second = (re.sub(" +", " ", line).strip() for line in text.splitlines()[-2:])
    assert first == "00ff 12.0 s running (kv_blocks 250 ms) 30/200 30.2 500 ms 1200 16 2 1 – team-a"
    assert second.startswith("00ff 3.0 s waiting sequence_slots 3.0 s 30/200")


@pytest.mark.parametrize("width", [20, 40, 60, 80, 100, 200])
def test_a_frame_fits_its_terminal(width: int) -> None:
    requests = Requests(RequestsView(summary(), [view(age) for age in range(100, 0, -1)]))
    text = shown(interval(), requests, width=width, height=24)
    assert all(len(line) <= width for line in text.splitlines())
    assert "running" in text
    if width >= 100:
        assert len(text.splitlines()) <= 24
        assert "and 89 younger ones" in text


def test_what_others_say_does_not_steer_the_terminal() -> None:
    evil = "\x1b[2J\x9b[red]x"
    requests = RequestsView(summary(), [view(tenant=evil, wait=WaitView(evil, 1.0))])
    found = interval(after=AFTER.replace('reason="capacity"', f'reason="{evil}"'))
    for text in (
        shown(found, Requests(requests), problem=evil),
        shown(found, Requests(None, evil)),
    ):
        assert "\x1b" not in text
        assert "\x9b" not in text
        assert "[red]x" in text


# ---- the command


class _Server(ThreadingHTTPServer):
    """``answers``: status and body by path."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        requests = msgspec.json.encode(RequestsView(summary(), [view()]))
        self.answers: dict[str, tuple[int, bytes]] = {
            "/metrics": (200, BEFORE.encode()),
            "/debug/requests": (200, requests),
        }
        self.keys: set[str | None] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self.server.keys.add(self.headers.get("Authorization"))
        status, body = self.server.answers.get(self.path, (404, b"not here"))
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def server() -> Iterator[_Server]:
    with _Server() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def error(status: int, message: str) -> tuple[int, bytes]:
    return status, json.dumps({"error": {"message": message}}).encode()


def test_one_frame(server: _Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert top(f"{server.url}/v1/", api_key="k", interval=0.1, once=True) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("octavo top  http://127.0.0.1:")
    assert "running" in captured.out.splitlines()[-1]
    assert captured.err == ""
    assert server.keys == {"Bearer k"}


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((404, b"not here"), "this server does not list its requests"),
        (error(403, "this API key does not have the scope admin"), "403: this API key does not have the scope admin"),
        ((200, b'{"data": 1}'), "/debug/requests is not as this version of octavo knows it"),
        ((200, b"\xff"), "/debug/requests is not as this version of octavo knows it"),
    ],
)
def test_without_the_requests(
    server: _Server, capsys: pytest.CaptureFixture[str], answer: tuple[int, bytes], said: str
) -> None:
    server.answers["/debug/requests"] = answer
    assert top(server.url, interval=0.1, once=True) == 0
    assert capsys.readouterr().out.splitlines()[-1] == said


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (error(401, "a valid API key is needed"), "401: a valid API key is needed (--api-key, with the scope metrics)"),
        (error(503, "the server is starting: loading"), "503: the server is starting: loading"),
        ((404, b"\x1b[2J"), "404: no reason given (is it a model server?)"),
        ((200, b"up 1\n"), "its metrics are not those of a model server"),
    ],
)
def test_without_metrics(
    server: _Server, capsys: pytest.CaptureFixture[str], answer: tuple[int, bytes], said: str
) -> None:
    server.answers["/metrics"] = answer
    assert top(server.url, interval=0.1, once=True) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.endswith(f"{said}\n")
    assert captured.err.startswith("octavo top: ")


@pytest.mark.parametrize("url", ["ftp://host", "http://", "http://h:99999", "http://127.0.0.1:1", "no host"])
def test_a_server_that_is_not_there(capsys: pytest.CaptureFixture[str], url: str) -> None:
    assert top(url, once=True) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith("octavo top: ")
    assert captured.err.count("\n") == 1


def test_frames_go_on_when_the_server_is_away_and_ctrl_c_leaves(server: _Server) -> None:
    command = [sys.executable, "-m", "octavo.cli", "top", "--url", server.url, "--interval", "0.1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        for line in process.stdout:
            if "done 11" in line:
                server.answers["/metrics"] = error(503, "the server is shutting down")
            if line.startswith("503: the server is shutting down"):
                break
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        assert process.stderr.read() == ""
        assert process.wait(20) == 0


def test_a_terminal_is_left_as_it_was(server: _Server) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "octavo.cli", "top", "--url", server.url, "--interval", "0.1"]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "30"}
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        written = b""
        while b"team-a" not in written:
            written += os.read(ours, 65536)
        process.send_signal(signal.SIGINT)
        while True:
            try:
                written += os.read(ours, 65536)
            except OSError:  # what Linux says at the end of a terminal
                break
        assert process.wait(20) == 0
    os.close(ours)
    enter, leave, show = b"\x1b[?1049h", b"\x1b[?1049l", b"\x1b[?25h"
    assert written.count(enter) == written.count(leave) == 1
    assert written.rindex(show) > written.rindex(b"\x1b[?25l")
    assert b"Traceback" not in written
