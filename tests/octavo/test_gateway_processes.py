"""Several gateway processes around a stub of an engine: one port, one desk, one set of figures, whoever dies."""

import asyncio
import errno
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from octavo_stubs import token_id, until
from test_supervisor_life import Server, make_server, nothing, starts, text_of  # noqa: F401 - a fixture

from ipc.config import EngineConfig
from ipc.errors import ConfigError
from octavo.child_process import ChildProcess
from octavo.engine_process import start_engine

NUM_GATEWAYS = 2


@pytest.fixture
def several(make_server: Callable[..., Server]) -> Callable[..., Server]:  # noqa: F811
    def make(orders: dict[str, Any] | None = None, **options: Any) -> Server:
        return make_server(orders, api_server_count=NUM_GATEWAYS, **options)

    return make


def gateways(server: Server) -> list[int]:
    """Process ids."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            status, command = (folder / "status").read_text(), (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if f"\nPPid:\t{os.getpid()}\n" in status and b"octavo.gateway_process" in command:
            found.append(int(folder.name))
    return sorted(found)


async def until_serving(server: Server) -> None:
    """Both know the model."""
    await server.until_status("/health", 200)
    members = server.supervisor._gateway._members  # type: ignore[attr-defined]
    await asyncio.to_thread(until, lambda: sum(member.is_serving for member in members.values()) == NUM_GATEWAYS)


def test_requests_are_dealt_out_and_counted_together(several: Callable[..., Server]) -> None:
    async def test(server: Server) -> None:
        await until_serving(server)
        assert len(gateways(server)) == NUM_GATEWAYS
        streams = [server.complete("b", 100, stream=True) for _ in range(8)]
        assert [text_of((await stream).text) for stream in streams] == ["b" * 100] * 8
        members = server.supervisor._gateway._members  # type: ignore[attr-defined]
        await asyncio.to_thread(until, lambda: all(member.relay.is_idle for member in members.values()))
        for _ in range(NUM_GATEWAYS):  # whichever is asked
            text = (await server.http.get("/metrics", headers={"connection": "close"})).text
            assert 'octavo:request_success_total{engine="0",finished_reason="length",model_name=' in text
            assert sum(float(line.split()[-1]) for line in text.splitlines() if "request_success_total{" in line) == 8
            usage = (await server.http.get("/admin/usage", headers={"connection": "close"})).json()
            assert (usage["data"][0]["requests"], usage["data"][0]["output_tokens"]) == (8, 800)
        assert all(member.values for member in members.values())
        await asyncio.to_thread(until, lambda: all(member.relay.is_idle for member in members.values()))
        server.signal()

    assert several().run(test) == 0


def test_a_gateway_that_is_killed_takes_its_own_streams_only(several: Callable[..., Server]) -> None:
    async def test(server: Server) -> None:
        await until_serving(server)
        members = server.supervisor._gateway._members  # type: ignore[attr-defined]
        streams = [server.complete("c", 200, stream=True) for _ in range(6)]
        await asyncio.to_thread(until, lambda: server.supervisor._client.num_in_flight == 6)
        first = gateways(server)[0]
        os.kill(first, signal.SIGKILL)
        ended = await asyncio.gather(*streams, return_exceptions=True)
        whole = [one for one in ended if isinstance(one, httpx.Response) and text_of(one.text) == "c" * 200]
        assert 0 < len(whole) < 6  # connections are dealt out in turn; one may have been there before
        assert all(isinstance(one, httpx.HTTPError) for one in ended if one not in whole)
        await asyncio.to_thread(until, lambda: server.supervisor._client.num_in_flight == 0)
        await until_serving(server)
        assert first not in gateways(server)
        await asyncio.to_thread(until, lambda: server.supervisor._desk.admission.num_sequences == 0)
        assert (await server.complete("a", 3)).json()["choices"][0]["text"] == "aaa"
        await asyncio.to_thread(until, lambda: all(member.relay.is_idle for member in members.values()))
        server.signal()

    assert several({"seconds_per_token": 0.002}).run(test) == 0


def test_an_engine_that_dies_is_no_gateways_business(several: Callable[..., Server]) -> None:
    async def test(server: Server) -> None:
        await until_serving(server)
        streams = [server.complete(letter, 400, stream=True) for letter in "bcde"]
        await asyncio.to_thread(until, lambda: server.supervisor._client.last_beat is not None)
        before = gateways(server)
        os.kill(starts(server)[0], signal.SIGKILL)
        assert [text_of((await stream).text) for stream in streams] == [letter * 400 for letter in "bcde"]
        assert gateways(server) == before
        text = (await server.http.get("/metrics")).text
        assert "octavo:engine_restarts_total{" in text
        server.signal()

    assert several().run(test) == 0


def test_a_poisonous_request_fails_alone(several: Callable[..., Server]) -> None:
    async def test(server: Server) -> None:
        await until_serving(server)
        harmless = server.complete("b", 450, stream=True)
        await asyncio.to_thread(until, lambda: server.supervisor._client.num_in_flight == 1)
        failed = await server.complete("a", 3)
        assert (failed.status_code, failed.json()["error"]["code"]) == (500, "engine_killed")
        assert text_of((await harmless).text) == "b" * 450
        server.signal()

    assert several({"die_on": token_id("a")}).run(test) == 0


def test_when_there_is_no_engine_any_more(several: Callable[..., Server]) -> None:
    async def test(server: Server) -> None:
        await until_serving(server)
        streams = [server.complete("b", 500, stream=True) for _ in range(4)]
        await asyncio.to_thread(until, lambda: server.supervisor._client.num_in_flight == 4)
        os.kill(starts(server)[0], signal.SIGKILL)
        for stream in streams:
            events = (await stream).text
            assert events.count('"code":"engine_died"') == 1
            assert "[DONE]" not in events

    assert several({"seconds_per_token": 0.01}, engine_max_restarts=0).run(test) == 1


def test_places_are_counted_over_all_gateways(several: Callable[..., Server]) -> None:
    async def test(server: Server) -> None:
        await until_serving(server)
        running = [server.complete("b", 450, stream=True) for _ in range(4)]
        await asyncio.to_thread(until, lambda: server.supervisor._client.num_in_flight == 4)
        for padding in (0, 100_000):  # a long body is refused before it is read
            refused = await server.complete("c", 3, user="x" * padding)
            assert refused.status_code == 429
            assert int(refused.headers["retry-after"]) >= 1
        assert [text_of((await stream).text) for stream in running] == ["b" * 450] * 4
        assert (await server.complete("c", 3)).status_code == 200
        server.signal()

    assert several(max_num_queued_reqs=4).run(test) == 0


def test_draining_concerns_all(several: Callable[..., Server]) -> None:
    async def test(server: Server) -> None:
        await until_serving(server)
        running = server.complete("b", 450, stream=True)
        await asyncio.to_thread(until, lambda: server.supervisor._client.num_in_flight == 1)
        assert (await server.http.post("/admin/drain")).json() == {"in_flight": 1, "status": "draining"}
        for _ in range(NUM_GATEWAYS):
            answer = await server.http.get("/health", headers={"connection": "close"})
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "draining")
        assert text_of((await running).text) == "b" * 450
        server.signal()

    assert several().run(test) == 0


def test_what_does_not_finish_in_time_is_told_by_each(several: Callable[..., Server]) -> None:
    async def test(server: Server) -> None:
        await until_serving(server)
        streams = [server.complete("c", 500, stream=True) for _ in range(4)]
        await asyncio.to_thread(until, lambda: server.supervisor._client.num_in_flight == 4)
        server.signal()
        for stream in streams:
            events = (await stream).text
            assert events.count('"code":"shutting_down"') == 1
            assert "[DONE]" not in events

    assert several({"seconds_per_token": 0.01}, shutdown_timeout=0.0).run(test) == 0


def test_a_gateway_that_is_silent_gets_no_connections(
    several: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("octavo.gateway_processes.SILENT_SECONDS", 1.0)

    async def test(server: Server) -> None:
        await until_serving(server)
        gateway = server.supervisor._gateway
        stopped = gateways(server)[0]
        os.kill(stopped, signal.SIGSTOP)
        try:
            await asyncio.to_thread(until, lambda: len(gateway._channels()) == 1)  # type: ignore[attr-defined]
            for path in ["/health", "/metrics"] * NUM_GATEWAYS:  # each on a connection of its own
                async with httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(uds=str(server.socket))) as fresh:
                    assert (await fresh.get(f"http://x{path}")).status_code == 200
        finally:
            os.kill(stopped, signal.SIGCONT)
        await asyncio.to_thread(until, lambda: len(gateway._channels()) == 2)  # type: ignore[attr-defined]
        server.signal()

    assert several().run(test) == 0


def test_a_model_whose_text_is_unusable(several: Callable[..., Server], capfd: pytest.CaptureFixture[str]) -> None:
    server = several()
    (server.model / "tokenizer.json").write_text("{")
    with pytest.raises(ConfigError, match=r"tokenizer\.json"):
        server.run(nothing)


def test_readiness_tells_of_an_outage(several: Callable[..., Server], monkeypatch: pytest.MonkeyPatch) -> None:
    may_start = asyncio.Event()

    async def reluctant(config: EngineConfig) -> ChildProcess:
        if config.transport.incarnation > 1 and not may_start.is_set():
            raise OSError(errno.EMFILE, "Too many open files")
        return await start_engine(config)

    monkeypatch.setattr("octavo.engine_keeper.start_engine", reluctant)
    monkeypatch.setattr("gateway.engine_client.OUTAGE_SECONDS", 0.0)
    monkeypatch.setattr("octavo.start_retries.FIRST_SECONDS", 0.01)

    async def test(server: Server) -> None:
        await until_serving(server)
        os.kill(starts(server)[0], signal.SIGKILL)
        told: list[str] = []
        while len(told) < NUM_GATEWAYS:  # connections are dealt out in turn
            answer = await server.http.get("/health", headers={"connection": "close"})
            told = [*told, answer.json()["error"]["message"]] if answer.status_code == 503 else []
        assert all("Too many open files" in message for message in told)
        waiting = server.complete("a", 3)
        may_start.set()
        assert (await waiting).json()["choices"][0]["text"] == "aaa"
        await server.until_status("/health", 200)
        server.signal()

    assert several().run(test) == 0
