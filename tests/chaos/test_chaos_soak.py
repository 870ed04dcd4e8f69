"""Load for a while, with clients that leave and engines that die: memory stays what it was after the warm-up.

``SOAK_SECONDS`` says how long; ``make soak`` takes ten minutes.
"""

import asyncio
import contextlib
import itertools
import logging
import os
import random
import statistics
import time

import pytest
from chaos_client import BrokenResponse, ask
from chaos_requests import MixedRequest, mixed_requests
from chaos_server import FAULTS, ChaosServer, ChaosStarter, kill
from e2e_process import resident_bytes

SECONDS = float(os.environ.get("SOAK_SECONDS", "90"))
NUM_CLIENTS = 24
NUM_REQUESTS = 256
MOST_GROWTH = 20 * 2**20
NUM_KILLS = 2
SAMPLE_SECONDS = 1.0

log = logging.getLogger("chaos")


@pytest.mark.timeout(SECONDS + 400)
def test_memory_is_flat(start: ChaosStarter, dice: random.Random, seed: int) -> None:
    """A third of the time warms up, engines dying in it; then both processes are watched, with the same load."""
    server = start(*FAULTS).wait_ready()
    requests = mixed_requests(seed, NUM_REQUESTS, 40)
    samples = asyncio.run(soak(server, requests, dice))
    server.check_whole()
    server.check_quiet_log()
    for name, sizes in samples.items():
        third = len(sizes) // 3
        growth = statistics.median(sizes[-third:]) - statistics.median(sizes[:third])
        log.info("%s: %d samples, %.1f MiB, grown by %.1f MiB", name, len(sizes), sizes[-1] / 2**20, growth / 2**20)
        assert growth < MOST_GROWTH, (name, [size >> 20 for size in sizes])
    server.stop_and_check()


async def soak(server: ChaosServer, requests: list[MixedRequest], dice: random.Random) -> dict[str, list[int]]:
    """Resident bytes of both processes after the warm-up, once a second."""
    started, turn = time.monotonic(), itertools.cycle(requests)
    is_over = asyncio.Event()

    async def client() -> None:
        while not is_over.is_set():
            request = next(turn)
            asking = ask(server, request.path, request.body)
            if dice.random() < 0.1:  # it leaves sooner or later
                with contextlib.suppress(TimeoutError, BrokenResponse):
                    await asyncio.wait_for(asking, dice.random() * 2)
            else:
                (await asking).check_end()

    async def watch() -> dict[str, list[int]]:
        for _ in range(NUM_KILLS):
            await asyncio.sleep(SECONDS / 3 / (NUM_KILLS + 1))
            kill(await asyncio.to_thread(server.wait_engine))
        await asyncio.sleep(max(0.0, started + SECONDS / 3 - time.monotonic()))
        engine = await asyncio.to_thread(server.wait_engine)
        samples: dict[str, list[int]] = {"gateway": [], "engine": []}
        while time.monotonic() < started + SECONDS:
            samples["gateway"].append(resident_bytes(server.pid))
            samples["engine"].append(resident_bytes(engine))
            await asyncio.sleep(SAMPLE_SECONDS)
        is_over.set()
        return samples

    async with asyncio.TaskGroup() as group:
        for _ in range(NUM_CLIENTS):
            group.create_task(client())
        watching = group.create_task(watch())
    return watching.result()
