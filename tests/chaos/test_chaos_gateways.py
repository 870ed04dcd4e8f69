"""Several gateways: one that is killed breaks its own connections, and no others, whatever the engine does then."""

import asyncio
import logging
import random

from chaos_client import Answer, BrokenResponse, ask
from chaos_load import Load, Progress, check_same
from chaos_requests import MixedRequest, mixed_requests
from chaos_server import FAULTS, PATIENCE, ChaosServer, ChaosStarter, kill, runs
from e2e_process import wait_until

NUM_GATEWAYS = 2
NUM_REQUESTS = 48
NUM_TOKENS = 80

log = logging.getLogger("chaos")


def gateway_pids(server: ChaosServer) -> list[int]:
    """Of the gateways that live now."""
    return [pid for pid in server.processes() if runs(pid, b"octavo.gateway_process")]


def test_a_killed_gateway_breaks_its_own_connections(start: ChaosStarter, dice: random.Random, seed: int) -> None:
    server = start(*FAULTS, "--api-server-count", str(NUM_GATEWAYS)).wait_ready()
    requests = mixed_requests(seed, NUM_REQUESTS, NUM_TOKENS)
    expected, num_events = Load(requests, [0] * len(requests)).run(server)
    server.check_whole()
    before = gateway_pids(server)
    assert len(before) == NUM_GATEWAYS
    found = asyncio.run(under_faults(server, requests, dice, num_events))
    whole = [index for index, answer in enumerate(found) if isinstance(answer, Answer)]
    log.info("%d of %d answers are whole", len(whole), len(found))
    assert 0 < len(whole) < len(found)
    answers = [answer for answer in found if isinstance(answer, Answer)]
    check_same([requests[index] for index in whole], answers, [expected[index] for index in whole])
    server.check_whole()
    wait_until(lambda: len(gateway_pids(server)) == NUM_GATEWAYS, PATIENCE, "another gateway is there")
    assert len(set(before) & set(gateway_pids(server))) == NUM_GATEWAYS - 1
    server.check_quiet_log()
    server.stop_and_check()


async def under_faults(
    server: ChaosServer, requests: list[MixedRequest], dice: random.Random, num_events: int
) -> list[Answer | Exception]:
    """The answers, or how they broke: the engine is killed a third of the way, and while it is away a gateway."""
    progress = Progress(num_open=len(requests))

    async def one(request: MixedRequest) -> Answer | Exception:
        try:
            return await ask(server, request.path, request.body, progress.count)
        except (BrokenResponse, OSError) as error:
            return error
        finally:
            progress.num_open -= 1

    tasks = [asyncio.create_task(one(request)) for request in requests]
    async with asyncio.timeout(PATIENCE):
        while progress.num_events < num_events // 3 and progress.num_open:
            await asyncio.sleep(0.005)
        kill(await asyncio.to_thread(server.wait_engine))
        kill(dice.choice(gateway_pids(server)))
    return await asyncio.gather(*tasks)
