"""When there is no engine any more, or no gateway: everybody is told once, soon, and nothing is left behind."""

import asyncio
import signal
import time

import httpx
import pytest
from chaos_client import Answer, BrokenResponse, ask
from chaos_load import Load, Progress, check_same
from chaos_requests import mixed_requests
from chaos_server import PATIENCE, ChaosServer, ChaosStarter, kill, refusal, wait_gone
from e2e_process import cpu_seconds, wait_until

NUM_REQUESTS = 24
TOLD_SECONDS = 2.0
ORPHAN_SECONDS = 5.0
LENGTH = 3000  # longer than a test
LONG = {"model": "tiny", "prompt": "Once", "max_tokens": LENGTH, "ignore_eos": True, "temperature": 0}


@pytest.mark.parametrize("num_restarts", [0, 2])
def test_everybody_is_told_when_there_is_no_engine_any_more(start: ChaosStarter, num_restarts: int) -> None:
    server = start("--engine-max-restarts", str(num_restarts)).wait_ready()
    ended: list[float] = []
    killed: list[float] = []

    async def one(index: int, progress: Progress) -> Answer:
        answer = await ask(server, "/v1/completions", {**LONG, "stream": index % 4 > 0, "n": 1 + index % 2, "seed": 1,
                           "temperature": 1}, progress.count)  # fmt: skip
        ended.append(time.monotonic())
        return answer

    async def run() -> list[Answer]:
        progress = Progress()
        tasks = [asyncio.create_task(one(index, progress)) for index in range(NUM_REQUESTS)]
        pid: int | None = None
        for _ in range(num_restarts + 1):
            pid = await asyncio.to_thread(server.wait_engine, other_than=pid)
            # Far enough that nobody is suspected any more of what has happened to the engine before.
            wanted = progress.num_events + 20 * NUM_REQUESTS
            async with asyncio.timeout(PATIENCE):
                while progress.num_events < wanted:
                    await asyncio.sleep(0.005)
            killed.append(time.monotonic())
            kill(pid)
        return await asyncio.gather(*tasks)

    answers = asyncio.run(run())
    assert max(ended) - killed[-1] < TOLD_SECONDS
    assert min(ended) > killed[-1]
    for answer in answers:
        assert [error["code"] for error in answer.errors] == ["engine_died"], answer.events[-2:]
        assert "[DONE]" not in answer.events
        assert "error" in answer.events[-1]
        assert answer.is_stream or answer.status >= 500
    assert server.wait_exit(PATIENCE) == 1
    assert not server.processes()
    server.check_quiet_log()


def test_new_requests_are_refused_when_there_is_no_engine_any_more(start: ChaosStarter) -> None:
    """503 until the port is closed; nobody waits."""
    server = start("--engine-max-restarts", "0").wait_ready()
    engine = server.wait_engine()
    kill(engine)
    wait_gone(engine)
    statuses = []
    while server.process.poll() is None:
        try:
            statuses.append(refusal(server).status_code)
        except httpx.TransportError:
            break
    # Before the gateway has heard of it, what comes is as good as what was there: told that the engine died.
    assert set(statuses) <= {500, 503}, statuses
    assert server.wait_exit(PATIENCE) == 1


@pytest.mark.parametrize("state", ["idle", "busy", "hung", "stopped", "starting"])
def test_an_engine_ends_with_its_gateway(start: ChaosStarter, state: str) -> None:
    server = start("--engine-heartbeat-timeout", "100")
    if state != "starting":
        server.wait_ready()
    engine = server.wait_engine()
    if state == "starting":
        wait_until(lambda: cpu_seconds(engine) > 0.3, PATIENCE, "the engine is in the middle of its start")
        end_gateway(server, engine)
        return

    async def run() -> None:
        progress = Progress()
        bodies = [{**LONG, "stream": True, "prompt": [300 + index]} for index in range(8)]
        tasks = [asyncio.create_task(ask(server, "/v1/completions", body, progress.count)) for body in bodies]
        async with asyncio.timeout(PATIENCE):
            while progress.num_events < 50:
                await asyncio.sleep(0.005)
        if state == "hung":
            server.hang_next_step()
            while server.is_about_to_hang:
                await asyncio.sleep(0.005)
        if state == "stopped":
            kill(engine, signal.SIGSTOP)
        await asyncio.to_thread(end_gateway, server, engine)
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(result, BrokenResponse | OSError), result  # an end that cannot be taken for a good one

    if state == "idle":
        end_gateway(server, engine)
    else:
        asyncio.run(run())


def end_gateway(server: ChaosServer, engine: int) -> None:
    kill(server.pid)
    assert wait_gone(engine, ORPHAN_SECONDS) < ORPHAN_SECONDS
    assert server.process.wait(PATIENCE) == -signal.SIGKILL


def test_a_gateway_that_was_killed_is_started_again_at_once(start: ChaosStarter, seed: int) -> None:
    """On the same port, while the clients of the old one are still there; its answers are the same."""
    first = start().wait_ready()
    requests = mixed_requests(seed, NUM_REQUESTS, 40)
    expected, _ = Load(requests, [0] * NUM_REQUESTS).run(first)
    engine = first.wait_engine()
    kill(first.pid)
    second = start(port=first.port).wait_ready()
    assert wait_gone(engine, ORPHAN_SECONDS) < ORPHAN_SECONDS
    answers, _ = Load(requests, [0] * NUM_REQUESTS).run(second)
    check_same(requests, answers, expected)
    second.check_whole()


def test_what_runs_is_finished_by_another_engine_while_the_server_drains(start: ChaosStarter, seed: int) -> None:
    """SIGTERM, and then the engine dies: the answers are whole, and the status is that of an end in order."""
    server = start("--shutdown-timeout", "300").wait_ready()
    requests = mixed_requests(seed, NUM_REQUESTS, 60)
    at_once = [0] * NUM_REQUESTS
    expected, num_events = Load(requests, at_once).run(server)

    async def conduct(progress: Progress) -> None:
        async with asyncio.timeout(PATIENCE):
            while progress.num_events < num_events // 4:
                await asyncio.sleep(0.005)
        engine = await asyncio.to_thread(server.wait_engine)
        server.terminate()
        kill(engine)

    answers, _ = Load(requests, at_once).run(server, conduct)
    check_same(requests, answers, expected)
    assert server.wait_exit(PATIENCE) == 0
    assert not server.processes()
    server.check_quiet_log()
