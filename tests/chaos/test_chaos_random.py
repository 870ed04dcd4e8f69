"""Random faults under 64 mixed streams: every answer is that of a run without faults, and nothing stays held."""

import asyncio
import logging
import random

from chaos_faults import FAULTS, Fault, Scene, kill_engine, recovered
from chaos_load import Load, Progress, check_same
from chaos_requests import mixed_requests
from chaos_server import ChaosServer

NUM_REQUESTS = 64
NUM_LATE = 16  # of these: they come later, perhaps while there is no engine
NUM_TOKENS = 100
NUM_ROUNDS = 3

log = logging.getLogger("chaos")


def test_nothing_is_lost_and_nothing_comes_twice(server: ChaosServer, dice: random.Random, seed: int) -> None:
    requests = mixed_requests(seed, NUM_REQUESTS, NUM_TOKENS)
    expected, num_events = Load(requests, [0] * len(requests)).run(server)
    server.check_whole()
    faults = list(FAULTS)
    dice.shuffle(faults)
    per_round = -(-len(faults) // NUM_ROUNDS)
    for first in range(0, len(faults), per_round):
        late = [0] * (NUM_REQUESTS - NUM_LATE) + [dice.randrange(1, num_events // 2) for _ in range(NUM_LATE)]
        dice.shuffle(late)
        plan = Plan(server, dice, faults[first : first + per_round], num_events)
        num_restarts = server.num_restarts()
        answers, _ = Load(requests, late).run(server, plan.conduct)
        check_same(requests, answers, expected)
        server.check_whole()
        assert server.num_restarts() - num_restarts == plan.num_engines_lost


def test_a_search_starts_over(server: ChaosServer, seed: int) -> None:
    """Beam searches have no output that could be continued; the result is the same."""
    requests = mixed_requests(seed, 32, 60, but=())
    assert any(request.kind == "beams" for request in requests)
    expected, num_events = Load(requests, [0] * len(requests)).run(server)

    async def conduct(progress: Progress) -> None:
        while progress.num_open and progress.num_events < num_events // 5:
            await asyncio.sleep(0.005)
        await kill_engine(Scene(server, random.Random(seed), progress))

    answers, _ = Load(requests, [0] * len(requests)).run(server, conduct)
    check_same(requests, answers, expected)


class Plan:
    """Faults of one round, spread over the events that a round without faults has."""

    def __init__(self, server: ChaosServer, dice: random.Random, faults: list[Fault], num_events: int) -> None:
        self._server, self._dice, self._faults = server, dice, faults
        self.num_engines_lost = 0
        self._times = sorted(dice.randrange(num_events * 8 // 10) for _ in faults)

    async def conduct(self, progress: Progress) -> None:
        """Each fault when it is time, or when the one before is over."""
        scene = Scene(self._server, self._dice, progress)
        for fault, num_events in zip(self._faults, self._times, strict=True):
            while progress.num_open and progress.num_events < num_events:
                await asyncio.sleep(0.005)
            if not progress.num_open:
                break
            log.info("%s after %d events, %d open", fault.__name__, progress.num_events, progress.num_open)
            self.num_engines_lost += await fault(scene)
            await recovered(scene)
