"""A server's life around a stub of an engine: ready, refused, dead, drained. Real signals are the e2e suite's."""

import asyncio
import errno
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import httpx
import pytest
from octavo_stubs import is_alive, make_executable, make_model, started, token_id, until
from structlog.testing import capture_logs

from ipc.config import EngineConfig
from ipc.errors import ConfigError
from octavo.child_process import ChildProcess
from octavo.engine_process import SocketDirectory, start_engine
from octavo.front import bind
from octavo.options import build_serve_config
from octavo.start_retries import StartRetries
from octavo.supervisor import Supervisor, first_of, in_daemon_thread


class Server:
    """A supervisor in this process, on a Unix socket, run by a test that talks to it from the same loop."""

    def __init__(self, folder: Path, model: Path, **options: Any) -> None:
        self.model, self.socket = model, folder / "socket"
        self._config = build_serve_config(str(model), {"uds": str(self.socket), **options})

    def run(self, test: Callable[["Server"], Coroutine[Any, Any, None]]) -> int:
        """The exit status, once ``test`` and the server are through."""

        async def both() -> int:
            with bind(self._config.gateway) as listener, SocketDirectory() as directory:
                self.supervisor = Supervisor(self._config, listener, directory)
                async with httpx.AsyncClient(
                    transport=httpx.AsyncHTTPTransport(uds=str(self.socket)), base_url="http://x", timeout=20
                ) as self.http:
                    self.life = asyncio.create_task(self.supervisor.run())
                    await asyncio.wait_for(test(self), 30)
                    status = await asyncio.wait_for(self.life, 30)
            assert not directory.path.exists()
            return status

        status = asyncio.run(both())
        if (self.model / "started.json").exists():
            assert not is_alive(started(self.model)["pid"])
        return status

    async def until_status(self, path: str, status: int) -> None:
        async with asyncio.timeout(20):
            while (await self.http.get(path)).status_code != status:
                await asyncio.sleep(0.005)

    async def until_started(self) -> None:
        await asyncio.to_thread(until, (self.model / "started.json").is_file)

    def signal(self) -> None:
        self.supervisor._on_signal()

    def complete(self, prompt: str, max_tokens: int, **fields: Any) -> "asyncio.Task[httpx.Response]":
        body = {"prompt": prompt, "max_tokens": max_tokens, **fields}
        return asyncio.create_task(self.http.post("/v1/completions", json=body))


@pytest.fixture
def make_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Server]:
    monkeypatch.setattr("sys.executable", make_executable(tmp_path))

    def make(orders: dict[str, Any] | None = None, **options: Any) -> Server:
        return Server(tmp_path, make_model(tmp_path / "model", **(orders or {})), **options)

    return make


async def nothing(server: Server) -> None:
    """The server ends by itself."""


def test_it_serves_announces_itself_and_drains(
    make_server: Callable[..., Server], capsys: pytest.CaptureFixture[str]
) -> None:
    async def test(server: Server) -> None:
        await server.until_status("/health", 200)
        assert (await server.complete("a", 3)).json()["choices"][0]["text"] == "aaa"
        await server.until_status("/metrics", 200)
        short, long = server.complete("b", 100), server.complete("c", 500, stream=True)
        await asyncio.to_thread(until, lambda: server.supervisor._client.num_in_flight == 2)
        server.signal()
        await server.until_status("/health", 503)
        refused = await server.complete("a", 3)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
        assert (await short).json()["choices"][0]["text"] == "b" * 100
        assert (await long).text.endswith("data: [DONE]\n\n")

    assert make_server().run(test) == 0
    shown = capsys.readouterr().err
    assert shown.splitlines()[-2] == "octavo is ready: http://localhost"
    assert shown.splitlines()[-1].startswith("curl --unix-socket ")


@pytest.mark.parametrize("is_impatient", [False, True])
def test_what_does_not_finish_in_time_is_told(make_server: Callable[..., Server], is_impatient: bool) -> None:
    async def test(server: Server) -> None:
        await server.until_status("/health", 200)
        streamed, whole = server.complete("c", 500, stream=True), server.complete("c", 500)
        await asyncio.to_thread(until, lambda: server.supervisor._client.num_in_flight == 2)
        server.signal()
        if is_impatient:
            await server.until_status("/health", 503)
            server.signal()
        events = (await streamed).text
        assert events.count('"code":"shutting_down"') == 1
        assert "[DONE]" not in events
        assert (await whole).status_code == 503

    assert make_server(shutdown_timeout=600.0 if is_impatient else 0.0).run(test) == 0


@pytest.mark.parametrize(("said", "status"), [(2, 2), (1, 1), (0, 1), (3, 1)])
def test_an_engine_that_ends_before_it_is_ready(make_server: Callable[..., Server], said: int, status: int) -> None:
    """2 is a configuration that it has complained of itself; anything else is a failure."""
    assert make_server({"exit": said}).run(nothing) == status


@pytest.mark.parametrize("said", [0, 1, 2])
def test_an_engine_that_ends_later_is_a_failure_whatever_it_says(make_server: Callable[..., Server], said: int) -> None:
    async def test(server: Server) -> None:
        await server.until_status("/health", 200)
        running = server.complete("b", 500, stream=True)
        await asyncio.to_thread(until, lambda: server.supervisor._client.num_in_flight == 1)
        dying = server.complete("a", 1)
        assert (await running).text.count('"code":"engine_died"') == 1
        assert (await dying).json()["error"]["code"] == "engine_died"

    assert make_server({"die_on": token_id("a"), "status": said}, engine_max_restarts=0).run(test) == 1


def test_an_idle_engine_that_is_killed(make_server: Callable[..., Server]) -> None:
    async def test(server: Server) -> None:
        await server.until_status("/health", 200)
        os.kill(started(server.model)["pid"], signal.SIGKILL)

    assert make_server(engine_max_restarts=0).run(test) == 1


def text_of(events: str) -> str:
    """What a stream said, all of it."""
    chunks = [json.loads(line[6:]) for line in events.splitlines() if line.startswith("data: {")]
    return "".join(choice["text"] for chunk in chunks for choice in chunk["choices"])


def test_streams_go_on_when_the_engine_is_killed(make_server: Callable[..., Server]) -> None:
    """As often as it may; then everybody is told once, and the server ends."""

    async def test(server: Server) -> None:
        await server.until_status("/health", 200)
        running = [server.complete(letter, 400, stream=True) for letter in "bcd"]
        for number in (1, 2):
            await asyncio.to_thread(until, lambda: server.supervisor._client.is_connected)
            await asyncio.to_thread(until, lambda: len(starts(server)) == number)  # noqa: B023 - used at once
            await asyncio.to_thread(until, lambda: server.supervisor._client.last_beat is not None)
            os.kill(starts(server)[-1], signal.SIGKILL)
            await asyncio.to_thread(until, lambda: not server.supervisor._client.is_connected)
        late = server.complete("e", 3)
        assert (await late).json()["choices"][0]["text"] == "eee"
        for letter, task in zip("bcd", running, strict=True):
            events = (await task).text
            assert text_of(events) == letter * 400
            assert "error" not in events
        metrics = (await server.http.get("/metrics")).text
        assert 'octavo:engine_restarts_total{engine="0",model_name=' in metrics
        assert len(starts(server)) == 3
        running = [server.complete(letter, 500, stream=True) for letter in "bc"]
        await asyncio.to_thread(until, lambda: server.supervisor._client.num_in_flight == 2)
        os.kill(starts(server)[-1], signal.SIGKILL)
        for task in running:
            assert (await task).text.count('"code":"engine_died"') == 1

    assert make_server({"seconds_per_token": 0.01, "slow_from": 3}, engine_max_restarts=2).run(test) == 1


def starts(server: Server) -> list[int]:
    """The process ids of all engines so far."""
    return [int(line) for line in (server.model / "starts").read_text().split()]


def test_an_engine_that_the_system_does_not_let_us_start(
    make_server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    """For want of files, processes or memory: it is tried again, requests wait, and those that could go elsewhere hear
    of it."""
    refused = [OSError(errno.EMFILE, "Too many open files")] * 3 + [BlockingIOError(errno.EAGAIN, "no process")]
    may_start = False

    async def reluctant(config: EngineConfig) -> ChildProcess:
        if config.transport.incarnation > 1 and not may_start:
            raise refused.pop() if len(refused) > 1 else refused[0]
        return await start_engine(config)

    monkeypatch.setattr("octavo.engine_keeper.start_engine", reluctant)
    monkeypatch.setattr("octavo.start_retries.FIRST_SECONDS", 0.01)
    monkeypatch.setattr("octavo.start_retries.MOST_SECONDS", 0.02)
    monkeypatch.setattr("gateway.engine_client.OUTAGE_SECONDS", 0.0)

    async def test(server: Server) -> None:
        nonlocal may_start
        await server.until_status("/health", 200)
        running = server.complete("b", 450, stream=True)
        await asyncio.to_thread(until, lambda: server.supervisor._client.last_beat is not None)
        os.kill(starts(server)[0], signal.SIGKILL)
        await server.until_status("/health", 503)
        late = server.complete("c", 3)
        async with asyncio.timeout(20):
            while "Too many open files" not in (answer := await server.http.get("/health")).text:
                await asyncio.sleep(0.005)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_engine")
        assert int(answer.headers["retry-after"]) > 0
        assert (await server.http.get("/health/live")).status_code == 200
        may_start = True
        assert text_of((await running).text) == "b" * 450
        assert (await late).json()["choices"][0]["text"] == "ccc"
        assert (await server.http.get("/health")).status_code == 200
        server.signal()

    with capture_logs() as logs:
        assert make_server().run(test) == 0
    told = [entry["reason"] for entry in logs if entry["event"] == "no engine could be started"]
    assert told == ["[Errno 11] no process", "[Errno 24] Too many open files"], "not each time"


def test_an_engine_that_the_system_never_lets_us_start(
    make_server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if it had died too often."""

    async def never(config: EngineConfig) -> ChildProcess:
        if config.transport.incarnation > 1:
            raise OSError(errno.EMFILE, "Too many open files")
        return await start_engine(config)

    monkeypatch.setattr("octavo.engine_keeper.start_engine", never)
    monkeypatch.setattr("octavo.start_retries.FIRST_SECONDS", 0.01)
    monkeypatch.setattr("octavo.engine_keeper.StartRetries", lambda patience: StartRetries(patience / 1e4))

    async def test(server: Server) -> None:
        await server.until_status("/health", 200)
        running = server.complete("b", 500, stream=True)
        await asyncio.to_thread(until, lambda: server.supervisor._client.last_beat is not None)
        os.kill(starts(server)[0], signal.SIGKILL)
        events = (await running).text
        assert events.count('"code":"engine_died"') == 1
        assert "Too many open files" in events
        assert "[DONE]" not in events

    assert make_server(engine_start_timeout=1000.0).run(test) == 1


def test_a_signal_while_the_system_lets_us_start_no_engine(
    make_server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pause between two attempts holds the end up no longer than what runs may."""
    tried = threading.Event()

    async def never(config: EngineConfig) -> ChildProcess:
        if config.transport.incarnation > 1:
            tried.set()
            raise OSError(errno.EMFILE, "Too many open files")
        return await start_engine(config)

    monkeypatch.setattr("octavo.engine_keeper.start_engine", never)
    monkeypatch.setattr("octavo.start_retries.FIRST_SECONDS", 1000.0)

    async def test(server: Server) -> None:
        await server.until_status("/health", 200)
        running = server.complete("b", 500, stream=True)
        await asyncio.to_thread(until, lambda: server.supervisor._client.last_beat is not None)
        os.kill(starts(server)[0], signal.SIGKILL)
        assert await asyncio.to_thread(tried.wait, 30)
        server.signal()
        server.signal()
        assert (await running).text.count('"code":"shutting_down"') == 1

    assert make_server().run(test) == 0


@pytest.mark.parametrize("num_gateways", [1, 2])
def test_a_deadline_passes_while_an_engine_is_replaced(
    make_server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch, num_gateways: int
) -> None:
    """Who has nothing gets 408 then, who has tokens keeps them. Others wait for the engine that comes."""
    may_start = asyncio.Event()

    async def held_up(config: EngineConfig) -> ChildProcess:
        if config.transport.incarnation > 1:
            await may_start.wait()
        return await start_engine(config)

    monkeypatch.setattr("octavo.engine_keeper.start_engine", held_up)

    async def test(server: Server) -> None:
        await server.until_status("/health", 200)
        client = server.supervisor._client
        begun = server.complete("b", 500, stream=True, deadline_ms=2500)
        await asyncio.to_thread(until, lambda: any(one.flight.has_begun for one in list(client._streams.values())))
        os.kill(starts(server)[0], signal.SIGKILL)
        await asyncio.to_thread(until, lambda: not client.is_connected)
        waits = [server.complete("c", 3, stream=stream, deadline_ms=500) for stream in (False, True)]
        patient = server.complete("d", 3)
        for answer in waits:
            assert ((await answer).status_code, (await answer).json()["error"]["code"]) == (408, "deadline_exceeded")
        events = (await begun).text
        assert 0 < len(text_of(events)) < 500
        assert events.count('"finish_reason":"deadline"') == 1
        assert events.endswith("data: [DONE]\n\n")
        may_start.set()
        assert (await patient).json()["choices"][0]["text"] == "ddd"
        admission = server.supervisor._desk.admission
        await asyncio.to_thread(until, lambda: (client.num_in_flight, admission.num_sequences) == (0, 0))
        server.signal()

    assert make_server({"seconds_per_token": 0.01}, api_server_count=num_gateways).run(test) == 0


def test_a_request_that_kills_engines_fails_alone(make_server: Callable[..., Server]) -> None:
    async def test(server: Server) -> None:
        await server.until_status("/health", 200)
        running = server.complete("b", 450, stream=True)
        await asyncio.to_thread(until, lambda: server.supervisor._client.num_in_flight == 1)
        answer = await server.complete("a", 3)
        assert (answer.status_code, answer.json()["error"]["code"]) == (500, "engine_killed")
        assert text_of((await running).text) == "b" * 450
        assert len(starts(server)) == 3
        server.signal()

    assert make_server({"die_on": token_id("a")}, engine_max_restarts=1).run(test) == 0


def test_a_request_that_an_engine_dies_under_by_chance(make_server: Callable[..., Server]) -> None:
    async def test(server: Server) -> None:
        await server.until_status("/health", 200)
        assert (await server.complete("a", 3)).json()["choices"][0]["text"] == "aaa"
        server.signal()

    assert make_server({"die_on": token_id("a"), "die_once": True}).run(test) == 0


def test_an_engine_that_hangs_is_replaced(make_server: Callable[..., Server]) -> None:
    """It still beats, but its loop does not turn."""

    async def test(server: Server) -> None:
        await server.until_status("/health", 200)
        answers = [server.complete(letter, 3) for letter in "cab"]
        assert [(await answer).json()["choices"][0]["text"] for answer in answers] == ["ccc", "aaa", "bbb"]
        assert len(starts(server)) == 2
        server.signal()

    assert make_server({"stall_on": token_id("a")}, engine_heartbeat_timeout=1.0).run(test) == 0


def test_an_engine_that_is_stopped_by_a_signal_is_replaced(make_server: Callable[..., Server]) -> None:
    async def test(server: Server) -> None:
        await server.until_status("/health", 200)
        running = server.complete("b", 450, stream=True)
        await asyncio.to_thread(until, lambda: server.supervisor._client.last_beat is not None)
        os.kill(starts(server)[0], signal.SIGSTOP)
        assert text_of((await running).text) == "b" * 450
        assert len(starts(server)) == 2
        server.signal()

    assert make_server(engine_heartbeat_timeout=1.0).run(test) == 0


def test_a_signal_while_an_engine_is_replaced(make_server: Callable[..., Server]) -> None:
    """What runs has the shutdown timeout, and an engine comes for it."""

    async def test(server: Server) -> None:
        await server.until_status("/health", 200)
        running = server.complete("b", 450, stream=True)
        await asyncio.to_thread(until, lambda: server.supervisor._client.last_beat is not None)
        os.kill(starts(server)[0], signal.SIGKILL)
        await asyncio.to_thread(until, lambda: not server.supervisor._client.is_connected)
        server.signal()
        assert text_of((await running).text) == "b" * 450

    assert make_server().run(test) == 0


def test_a_signal_while_the_engine_loads(make_server: Callable[..., Server]) -> None:
    async def test(server: Server) -> None:
        await server.until_status("/health/live", 200)
        await server.until_started()
        assert (await server.http.get("/health")).status_code == 503
        server.signal()

    assert make_server({"hang": 1}).run(test) == 0


def test_a_signal_before_the_model_is_found(
    make_server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A download or conversion that goes on does not hold the end up."""
    never = threading.Event()

    def slow(model: str) -> Path:
        never.wait(30)
        return Path(model)

    monkeypatch.setattr("octavo.supervisor.resolve_model", slow)

    async def test(server: Server) -> None:
        await server.until_status("/health/live", 200)
        server.signal()
        await server.life
        assert not (server.model / "started.json").exists()

    assert make_server().run(test) == 0
    never.set()


def test_text_that_cannot_be_loaded_ends_the_engine_too(make_server: Callable[..., Server]) -> None:
    server = make_server({"hang": 1})
    (server.model / "tokenizer_config.json").write_text('{"chat_template": "{% for %}"}')
    with pytest.raises(ConfigError, match="template"):
        server.run(nothing)
    # It may have been killed before it could write its number.
    if (server.model / "started.json").exists():
        assert not is_alive(started(server.model)["pid"])


def test_a_thread_beside_the_loop() -> None:
    async def run() -> None:
        assert await in_daemon_thread(lambda: threading.current_thread().daemon)
        with pytest.raises(ZeroDivisionError):
            await in_daemon_thread(lambda: 1 // 0)
        with pytest.raises(SystemExit):
            await in_daemon_thread(lambda: sys.exit(3))

    asyncio.run(run())


def test_the_first_of_several_and_the_others_untouched() -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        done, open_one = loop.create_future(), loop.create_future()
        done.set_result(1)
        await first_of(open_one, done)
        await first_of(open_one, timeout=0)
        assert not open_one.done()

    asyncio.run(run())
