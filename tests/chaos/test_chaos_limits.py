"""Limits and clocks of the system that turn against a server: it waits or refuses, and recovers."""

import asyncio
import contextlib
import os
import resource
import socket
import time
from collections.abc import Iterator

from chaos_client import BrokenResponse, ask
from chaos_load import Load, Progress, check_same
from chaos_requests import COMP, mixed_requests
from chaos_server import FAULTS, PATIENCE, ChaosServer, ChaosStarter, kill
from e2e_process import wait_until

NUM_REQUESTS = 16
NUM_FREE = 12
NUM_CONNECTIONS = 60
DAY = 86_400


@contextlib.contextmanager
def few_files(pid: int) -> Iterator[None]:
    """The process can open a few more files than it has open now."""
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    num_open = max(int(name) for name in os.listdir(f"/proc/{pid}/fd")) + 1
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (num_open + NUM_FREE, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


def test_more_connections_than_files(start: ChaosStarter, seed: int) -> None:
    """What has a connection is served; what has none waits for one or is turned away."""
    server = start(*FAULTS).wait_ready()
    requests = mixed_requests(seed, NUM_CONNECTIONS, 30)
    expected, _ = Load(requests, [0] * NUM_CONNECTIONS).run(server)

    async def one(index: int) -> bool:
        """Whether it was served."""
        try:
            answer = await ask(server, requests[index].path, requests[index].body)
        except (BrokenResponse, OSError):
            return False
        answer.check_end()
        assert answer.outcome() == expected[index].outcome()
        return True

    async def all_at_once() -> list[bool]:
        async with asyncio.timeout(PATIENCE):
            return await asyncio.gather(*map(one, range(NUM_CONNECTIONS)))

    with few_files(server.pid):
        assert sum(asyncio.run(all_at_once())) >= NUM_FREE // 2
    wait_until(lambda: server.status() == 200, PATIENCE, "it answers again")
    answers, _ = Load(requests, [0] * NUM_CONNECTIONS).run(server)
    check_same(requests, answers, expected)
    server.check_whole()


def test_an_engine_dies_while_there_are_no_files(start: ChaosStarter, seed: int) -> None:
    """The next one comes as soon as it can be started; who was served waits for it."""
    server = start(*FAULTS).wait_ready()
    requests = mixed_requests(seed, NUM_REQUESTS, 60)
    expected, num_events = Load(requests, [0] * NUM_REQUESTS).run(server)

    async def conduct(progress: Progress) -> None:
        while progress.num_events < num_events // 4:
            await asyncio.sleep(0.005)
        engine = await asyncio.to_thread(server.wait_engine)
        with contextlib.ExitStack() as stack:
            stack.enter_context(few_files(server.pid))
            for _ in range(NUM_CONNECTIONS):  # more than there are files for
                with contextlib.suppress(OSError):
                    stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=1))
            kill(engine)
            await asyncio.sleep(2)  # how long there are none
        await asyncio.to_thread(server.wait_engine, other_than=engine)

    answers, _ = Load(requests, [0] * NUM_REQUESTS).run(server, conduct)
    check_same(requests, answers, expected)
    server.check_whole()


def test_the_clock_is_set_while_streams_run(server: ChaosServer, seed: int) -> None:
    """Forwards and backwards by days: no engine counts as hung, nobody waits, no token changes."""
    requests = mixed_requests(seed, NUM_REQUESTS, 60)
    expected, num_events = Load(requests, [0] * NUM_REQUESTS).run(server)
    num_restarts = server.num_restarts()

    async def conduct(progress: Progress) -> None:
        for number, days in enumerate((1, -400, 4000), start=1):
            while progress.num_open and progress.num_events < number * num_events // 4:
                await asyncio.sleep(0.005)
            server.shift_clock(days * DAY)

    answers, _ = Load(requests, [0] * NUM_REQUESTS).run(server, conduct)
    check_same(requests, answers, expected)
    created = server.http.post(COMP, json={"prompt": "a", "max_tokens": 1}).json()["created"]
    assert created > time.time() + 3999 * DAY  # it is in fact another clock
    server.check_whole()
    server.shift_clock(0)
    assert server.num_restarts() == num_restarts
