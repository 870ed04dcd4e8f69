"""``octavo chat`` against a scripted server: streaming, history, errors, Ctrl-C, terminal and pipe."""

import io
import json
import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from octavo.chat import chat

Script = Callable[["_Handler"], None]


class _Server(ThreadingHTTPServer):
    """Answers the n-th chat request by ``scripts[n]`` and keeps the bodies."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.scripts: list[Script] = []
        self.bodies: list[dict[str, Any]] = []
        self.keys: list[str | None] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is no error; socketserver would print one into what a test reads."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        assert self.path == "/v1/models"
        self.reply(200, {"data": [{"id": "demo"}]})

    def do_POST(self) -> None:
        assert self.path == "/v1/chat/completions"
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.keys.append(self.headers.get("Authorization"))
        self.server.bodies.append(body)
        self.server.scripts[len(self.server.bodies) - 1](self)

    def reply(self, status: int, value: Any, **headers: str) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        for name, text in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name.replace("_", "-"), text)
        self.end_headers()
        self.wfile.write(data)

    def begin(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def send(self, raw: bytes) -> None:
        self.wfile.write(f"{len(raw):x}\r\n".encode() + raw + b"\r\n")
        self.wfile.flush()

    def event(self, value: Any) -> None:
        self.send(b"data: " + json.dumps(value, ensure_ascii=False).encode() + b"\n\n")

    def finish_stream(self) -> None:
        self.send(b"data: [DONE]\n\n")
        self.send(b"")


def _delta(text: str | None, finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {} if text is None else {"content": text}, "finish_reason": finish}]}


def _says(*parts: str, finish: str = "stop") -> Script:
    def script(handler: _Handler) -> None:
        handler.begin()
        handler.send(b": a comment\n\n")
        for part in parts:
            handler.event(_delta(part))
        handler.event(_delta(None, finish))
        handler.event({"choices": [], "usage": {}})
        handler.finish_stream()

    return script


@pytest.fixture
def server() -> Iterator[_Server]:
    with _Server() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def _chat(monkeypatch: pytest.MonkeyPatch, server: _Server, text: str, **options: str) -> int:
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    return chat(server.url, **options)


def test_answers_are_streamed_and_remembered(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], server: _Server
) -> None:
    server.scripts = [_says("Bon", "jour é"), _says("Oui")]
    assert _chat(monkeypatch, server, "hello\n\nagain\n", api_key="k", system="Be brief.") == 0
    assert capsys.readouterr().out == "Bonjour é\nOui\n"
    assert server.keys == ["Bearer k", "Bearer k"]
    assert server.bodies[0]["model"] == "demo"
    assert server.bodies[0]["stream"] is True
    assert server.bodies[1]["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "Bonjour é"},
        {"role": "user", "content": "again"},
    ]


def test_commands(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], server: _Server) -> None:
    server.scripts = [_says("1"), _says("2")]
    text = "one\n/reset\n/system Rhyme.\n/nonsense\ntwo\n/quit\nnever asked\n"
    assert _chat(monkeypatch, server, text, model="other") == 0
    assert len(server.bodies) == 2
    assert server.bodies[1] == {
        "model": "other",
        "messages": [{"role": "system", "content": "Rhyme."}, {"role": "user", "content": "two"}],
        "stream": True,
    }
    assert "/reset" in capsys.readouterr().out


def test_an_answer_cut_by_its_length_is_marked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], server: _Server
) -> None:
    server.scripts = [_says("Once upon", finish="length")]
    assert _chat(monkeypatch, server, "tell\n") == 0
    assert capsys.readouterr().out.splitlines() == ["Once upon", "(cut: the answer reached its length limit)"]


def test_control_characters_do_not_reach_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], server: _Server
) -> None:
    server.scripts = [_says("a\x1b[2Jb\x07\x9bc\td")]
    assert _chat(monkeypatch, server, "x\n") == 0
    assert capsys.readouterr().out == "a[2Jbc\td\n"


def test_a_refused_question_is_one_line_and_leaves_no_trace(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], server: _Server
) -> None:
    def busy(handler: _Handler) -> None:
        handler.reply(429, {"error": {"message": "too many\nrequests"}}, Retry_After="7")

    server.scripts = [busy, _says("ok")]
    assert _chat(monkeypatch, server, "first\nsecond\n") == 1
    captured = capsys.readouterr()
    assert captured.err == "octavo chat: 429: too many requests (try again in 7 s)\n"
    assert captured.out == "ok\n"
    assert server.bodies[1]["messages"] == [{"role": "user", "content": "second"}]


def _error_inside(handler: _Handler) -> None:
    handler.begin()
    handler.event(_delta("par"))
    handler.event({"error": {"message": "engine died"}})
    handler.finish_stream()


def _breaks_off(handler: _Handler) -> None:
    handler.begin()
    handler.event(_delta("par"))
    handler.close_connection = True


def _ends_early(handler: _Handler) -> None:
    handler.begin()
    handler.event(_delta("par"))
    handler.send(b"")


def _sends_rubbish(handler: _Handler) -> None:
    handler.begin()
    handler.event(_delta("par"))
    handler.send(b"data: {]\n\n")
    handler.send(b"")


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (_error_inside, "engine died"),
        (_breaks_off, "before it was complete"),
        (_ends_early, "before it was complete"),
        (_sends_rubbish, "no chat chunk"),
    ],
)
def test_an_answer_that_fails_half_way(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], server: _Server, script: Script, said: str
) -> None:
    server.scripts = [script]
    assert _chat(monkeypatch, server, "x\n") == 1
    captured = capsys.readouterr()
    assert captured.out == "par\n"
    assert said in captured.err
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize(
    "url", ["ftp://host", "http://", "http://h:99999", "http://[", "http://127.0.0.1:1", "no host"]
)
def test_a_server_that_is_not_there(capsys: pytest.CaptureFixture[str], url: str) -> None:
    assert chat(url) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith("octavo chat: ")
    assert captured.err.count("\n") == 1


def test_a_url_may_end_in_v1(monkeypatch: pytest.MonkeyPatch, server: _Server) -> None:
    server.scripts = [_says("a")]
    monkeypatch.setattr(sys, "stdin", io.StringIO("x\n"))
    assert chat(server.url + "/v1/") == 0
    assert len(server.bodies) == 1


def _command(server: _Server) -> list[str]:
    return [sys.executable, "-m", "octavo.cli", "chat", "--url", server.url]


def test_ctrl_c_stops_the_answer_and_keeps_the_session(server: _Server) -> None:
    closed = threading.Event()

    def endless(handler: _Handler) -> None:
        handler.begin()
        handler.event(_delta("Hel"))
        # The client sends nothing more, so this returns when it closes.
        if handler.connection.recv(1) == b"":
            closed.set()
        handler.close_connection = True

    server.scripts = [endless, _says("fine")]
    process = subprocess.Popen(
        _command(server), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("go on\n")
    process.stdin.flush()
    assert process.stdout.read(3) == "Hel"
    process.send_signal(signal.SIGINT)
    assert closed.wait(30)
    out, err = process.communicate("and now\n", timeout=30)
    assert (process.returncode, out, err) == (0, "\n(stopped)\nfine\n", "")
    assert server.bodies[1]["messages"][1] == {"role": "assistant", "content": "Hel"}


def test_in_a_terminal_it_prompts_and_ctrl_d_leaves(server: _Server) -> None:
    server.scripts = [_says("Bonjour")]
    ours, theirs = pty.openpty()
    process = subprocess.Popen(_command(server), stdin=theirs, stdout=theirs, stderr=theirs, close_fds=True)
    os.close(theirs)
    seen = b""

    def read_until(text: bytes) -> None:
        nonlocal seen
        while text not in seen:
            seen += os.read(ours, 4096)
        seen = seen.split(text, 1)[1]

    read_until(b"> ")
    os.write(ours, b"hi\n")
    read_until(b"Bonjour")
    read_until(b"> ")
    os.write(ours, b"\x04")
    assert process.wait(30) == 0
    os.close(ours)
