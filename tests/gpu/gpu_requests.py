"""Requests of many lengths and kinds, and what must come of them."""

from collections.abc import Callable

from gpu_engine import Driver, Result, make_prompt
from gpu_models import CONFIGS

from ipc.params import SamplingParams

MakeDriver = Callable[..., Driver]
Requests = dict[int, tuple[list[int], SamplingParams]]
GREEDY = SamplingParams(temperature=0.0, max_tokens=24, num_logprobs=2)
DRAWN = SamplingParams(temperature=0.9, top_p=0.95, seed=5, max_tokens=24, num_logprobs=1)


def make_requests(name: str) -> Requests:
    """Prompts of many lengths; every third one is drawn."""
    vocab_size, lengths = CONFIGS[name]["vocab_size"], (1, 5, 16, 17, 33, 64, 100, 257)
    return {
        index: (make_prompt(index, lengths[index % len(lengths)], vocab_size), DRAWN if index % 3 == 2 else GREEDY)
        for index in range(32)
    }


def run_all(driver: Driver, requests: Requests, every: int = 0) -> dict[int, Result]:
    """``every``: steps between one request and the next."""
    for request_id, (prompt, params) in requests.items():
        driver.add(request_id, prompt, params)
        for _ in range(every):
            driver.step()
    return driver.run()


def assert_complete(results: dict[int, Result], requests: Requests) -> None:
    assert results.keys() == requests.keys()
    for request_id, result in results.items():
        assert result.failure is None
        assert len(result.token_ids) == requests[request_id][1].max_tokens
