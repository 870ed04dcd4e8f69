"""Requests that kill whatever engine runs them: found, failed alone, and nobody else's tokens change."""

import asyncio
from typing import Any

import pytest
from chaos_client import Answer, ask
from chaos_load import Load, Progress, check_same
from chaos_requests import COMP, MixedRequest, mixed_requests
from chaos_server import PATIENCE, ChaosStarter
from e2e_models import make_tokenizer

NUM_OTHERS = 16
# Bytes that no other request has.
FIRST, SECOND, THIRD = make_tokenizer().encode("\x01\x02\x03").ids


def poisonous(token_id: int, **fields: Any) -> MixedRequest:
    body = {"model": "tiny", "prompt": [300, token_id, 301], "temperature": 0, "max_tokens": 60, "ignore_eos": True}
    return MixedRequest("poison", COMP, {**body, **fields})


def check_condemned(answer: Answer) -> None:
    """One error and no other end, whether its response had begun or not."""
    assert [error["code"] for error in answer.errors] == ["engine_killed"], (answer.status, answer.events)
    if answer.is_stream:
        assert "error" in answer.events[-1]
    else:
        assert answer.status == 500


@pytest.mark.parametrize(
    ("how", "after"), [("raise", 0), ("SIGSEGV", 12), ("SIGKILL", 0)], ids=["prompt", "later", "killed"]
)
def test_a_poisonous_request_fails_alone(start: ChaosStarter, seed: int, how: str, after: int) -> None:
    """With the restarts that a server has by default: those that find it do not count."""
    server = start("--engine-max-restarts", "3", poison={FIRST: [how, after]}).wait_ready()
    others = mixed_requests(seed, NUM_OTHERS, 60)
    expected, num_events = Load(others, [0] * NUM_OTHERS).run(server)
    requests = [*others, poisonous(FIRST, stream=True), poisonous(FIRST, n=2)]
    # The second comes when the first is judged, or while that is done.
    answers, _ = Load(requests, [0] * NUM_OTHERS + [num_events // 8, num_events // 2]).run(server)
    check_same(others, answers[:NUM_OTHERS], expected)
    for answer in answers[NUM_OTHERS:]:
        check_condemned(answer)
    server.check_whole()


def test_several_poisonous_requests_at_once(start: ChaosStarter, seed: int) -> None:
    poison = {FIRST: ["raise", 0], SECOND: ["SIGSEGV", 5], THIRD: ["SIGABRT", 30]}
    server = start("--engine-max-restarts", "5", poison=poison).wait_ready()
    others = mixed_requests(seed + 1, NUM_OTHERS, 60)
    expected, num_events = Load(others, [0] * NUM_OTHERS).run(server)
    requests = [*others, *(poisonous(token_id, stream=True) for token_id in (FIRST, SECOND, THIRD))]
    answers, _ = Load(requests, [0] * NUM_OTHERS + [num_events // 8] * 3).run(server)
    check_same(others, answers[:NUM_OTHERS], expected)
    for answer in answers[NUM_OTHERS:]:
        check_condemned(answer)
    server.check_whole()


def test_a_search_is_not_suspected_because_it_has_no_output_yet(start: ChaosStarter) -> None:
    """A beam search says nothing until it ends. Engines that die beside it, one after the other, are not its fault."""
    server = start(poison={FIRST: ["SIGSEGV", 12], SECOND: ["SIGSEGV", 12]}).wait_ready()
    body = {
        "model": "tiny",
        "prompt": "Once upon",
        "use_beam_search": True,
        "n": 2,
        "max_tokens": 600,
        "temperature": 0,
    }
    search = MixedRequest("beams", COMP, {**body, "ignore_eos": True})
    beside = MixedRequest("beside", COMP, {"model": "tiny", "prompt": "There was", "max_tokens": 400, "seed": 1,
                          "temperature": 1, "ignore_eos": True, "stream": True})  # fmt: skip
    expected, _ = Load([search, beside], [0, 0]).run(server)

    async def conduct(progress: Progress) -> None:
        """The second comes when the first has killed two engines."""
        async with asyncio.timeout(PATIENCE):
            while server.log.count("the engine ended") < 2 or server.log.count("engine built") < 3:
                await asyncio.sleep(0.02)
        late = poisonous(SECOND, stream=True)
        check_condemned(await ask(server, late.path, late.body))

    requests = [search, beside, poisonous(FIRST, stream=True)]
    answers, _ = Load(requests, [0, 0, 40]).run(server, conduct)
    check_same([search, beside], answers[:2], expected)
    check_condemned(answers[2])
