"""Sampling: every token equals the one a float64 Gumbel-max over naively adjusted logits draws."""

import math
from typing import Any

import kernel_oracles as oracle
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import is_interpreted, make_rows

from kernels.ops import Ops, Samples

VOCAB = 70  # not a multiple of 32
NUM_TOKEN_IDS = 67


def random_request(generator: torch.Generator, history_length: int) -> dict[str, Any]:
    """A row with a random choice of parameters."""

    def chance(share: float) -> bool:
        return float(torch.rand((), generator=generator)) < share

    def number(low: float, high: float) -> float:
        return float(torch.rand((), generator=generator) * (high - low) + low)

    def some(count: int) -> list[int]:
        return torch.randint(0, VOCAB, (count,), generator=generator).tolist()

    position = int(torch.randint(1, history_length, (), generator=generator))
    request: dict[str, Any] = {
        "positions": position,
        "num_prompt_tokens": int(torch.randint(0, position + 1, (), generator=generator)),
        "seeds": int(torch.randint(-(2**63), 2**63 - 1, (), generator=generator)),
        "streams": int(torch.randint(0, 4, (), generator=generator)),
        "temperature": 0.0 if chance(0.3) else number(0.2, 2),
    }
    if chance(0.5):
        request |= {"repetition_penalty": number(0.6, 2), "frequency_penalty": number(-2, 2)}
        request |= {"presence_penalty": number(-2, 2)}
    if chance(0.4):
        request["bias"] = {token: number(-5, 5) for token in set(some(5))}
    if chance(0.4):
        request["bans"] = some(10)
    if chance(0.3):
        request["allowed"] = sorted(set(some(30)))
    if chance(0.3):
        request["bitmask"] = sorted(set(some(60)))
    if chance(0.3):
        request |= {"top_k": int(number(1, 12))}
    if chance(0.3):
        request |= {"top_p": number(0.1, 0.99)}
    if chance(0.3):
        request |= {"min_p": number(0.01, 0.5)}
    return request


def num_rows_for(ops: Ops, num_rows: int, interpreted: int) -> int:
    """Triton's interpreter takes some 100 ms a row."""
    return interpreted if is_interpreted(ops) else num_rows


def run(ops: Ops, logits: torch.Tensor, requests: list[dict[str, Any]], **extra: Any) -> Samples:
    tokens = extra.pop("tokens", torch.zeros(1, 8, dtype=torch.int32))
    before = logits.clone()
    result = ops.sample(logits, tokens, make_rows(requests, logits.shape[1], **extra))
    assert torch.equal(logits.nan_to_num(9e9), before.nan_to_num(9e9)), "the logits are not changed"
    assert result.token_ids.dtype == torch.int64
    assert result.is_valid.dtype == torch.bool
    return result


def expected_scores(
    logits: list[float], history: list[int], request: dict[str, Any], num_token_ids: int
) -> list[float]:
    """What the argmax is over, in float64; −inf for tokens that are not kept."""
    adjusted = oracle.adjusted_logits(logits, history, request, num_token_ids)
    temperature = request.get("temperature", 0.0)
    if temperature == 0 or max(adjusted) == -math.inf:
        return adjusted
    scaled = [value / max(temperature, 0.01) for value in adjusted]
    filters = {name: request[name] for name in ("top_k", "top_p", "min_p") if name in request}
    kept = oracle.kept_tokens(scaled, **filters)
    noise = oracle.gumbel(len(logits), request["positions"], request["streams"], request["seeds"])
    return [value + noise[i] if i in kept else -math.inf for i, value in enumerate(scaled)]


def test_random_requests_draw_the_oracle_token(ops: Ops) -> None:
    generator = torch.Generator().manual_seed(5)
    num_rows, history_length = num_rows_for(ops, 250, 18), 20
    logits = torch.randn(num_rows, VOCAB, generator=generator) * 3
    tokens = torch.randint(0, VOCAB, (num_rows, history_length), generator=generator, dtype=torch.int32)
    slots = torch.randperm(num_rows, generator=generator).tolist()
    requests = [random_request(generator, history_length) | {"slots": slots[row]} for row in range(num_rows)]
    for row, request in enumerate(requests):
        end = tokens[slots[row], : request["positions"]].tolist()
        if row % 3 == 0:  # bad words: one that ends here, one that does not, one without prefix, one too long
            request["bad_words"] = [[*end[-2:], 1], [VOCAB - 1, 2], [3], [5] * 30]
    result = run(ops, logits, requests, tokens=tokens, num_token_ids=NUM_TOKEN_IDS)
    num_compared = 0
    for row, request in enumerate(requests):
        history = tokens[slots[row], : request["positions"]].tolist()
        scores = expected_scores(logits[row].tolist(), history, request, NUM_TOKEN_IDS)
        best, second = sorted(scores)[-1], sorted(scores)[-2]
        assert bool(result.is_valid[row]) == (best > -math.inf)
        if best - second > 1e-4:
            assert int(result.token_ids[row]) == scores.index(best), request
            num_compared += 1
    assert num_compared > num_rows * 0.9


def test_a_large_vocabulary_draws_the_oracle_token(ops: Ops) -> None:
    """Peaked rows, where few tokens can win, and flat ones, where all can."""
    vocab = 4099
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn(8, vocab, generator=generator) * torch.tensor([0.1, 1, 5, 50] * 2)[:, None]
    requests = [{"temperature": 0.7, "seeds": row, "positions": 3, "streams": 1} for row in range(8)]
    result = run(ops, logits, requests)
    for row, request in enumerate(requests):
        scores = expected_scores(logits[row].tolist(), [], request, vocab)
        assert scores[int(result.token_ids[row])] > max(scores) - 1e-4


@settings(max_examples=15, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32), threads=st.sampled_from([1, 2]))
def test_a_row_draws_the_same_in_any_batch(ops: Ops, seed: int, threads: int) -> None:
    if is_interpreted(ops) and seed % 4:
        return  # interpreted, all would take half a minute
    generator = torch.Generator().manual_seed(seed)
    torch.set_num_threads(threads)
    num_rows = num_rows_for(ops, 6, 2)
    logits = torch.randn(num_rows, VOCAB, generator=generator) * 3
    tokens = torch.randint(0, VOCAB, (num_rows, 20), generator=generator, dtype=torch.int32)
    requests = [random_request(generator, 20) | {"slots": row} for row in range(num_rows)]
    together = run(ops, logits, requests, tokens=tokens, num_logprobs=3)
    order = torch.randperm(num_rows, generator=generator)
    shuffled = run(ops, logits[order], [requests[row] for row in order], tokens=tokens, num_logprobs=3)
    assert torch.equal(shuffled.token_ids, together.token_ids[order])
    assert together.logprobs is not None
    for row, request in enumerate(requests):
        alone = run(ops, logits[row : row + 1], [request], tokens=tokens, num_logprobs=3)
        assert alone.logprobs is not None
        assert torch.equal(alone.token_ids, together.token_ids[row : row + 1])
        for name in ("logprobs", "ranks", "top_ids", "top_logprobs"):
            assert torch.equal(getattr(alone.logprobs, name), getattr(together.logprobs, name)[row : row + 1])


@pytest.mark.parametrize("threads", [1, 2])
def test_ties_go_to_the_lowest_id(ops: Ops, threads: int) -> None:
    torch.set_num_threads(threads)
    logits = torch.zeros(3, 49_152)
    logits[0, [777, 40_000, 49_151]] = 5.0
    logits[1, [48_000, 48_001]] = 1.0
    assert run(ops, logits, [{}, {}, {}]).token_ids.tolist() == [777, 48_000, 0]


def test_a_tie_after_the_noise_goes_to_the_lowest_id(ops: Ops) -> None:
    """Logits so large that the noise rounds away: all that share the largest are equal."""
    logits = torch.full((1, 64), 1e9)
    logits[0, :20] = -1e9
    for seed in range(5):
        assert run(ops, logits, [{"temperature": 1.0, "seeds": seed}]).token_ids.tolist() == [20]


def test_small_temperatures_count_as_one_hundredth(ops: Ops) -> None:
    num_rows = num_rows_for(ops, 40, 12)
    logits = torch.linspace(0, 0.02, 64).repeat(num_rows, 1)
    cold = [{"temperature": 1e-5, "seeds": seed} for seed in range(num_rows)]
    floor = [{"temperature": 0.01, "seeds": seed} for seed in range(num_rows)]
    result = run(ops, logits, cold).token_ids
    assert torch.equal(result, run(ops, logits, floor).token_ids)
    assert len(set(result.tolist())) > 5


def test_seed_position_and_stream_each_change_the_draw(ops: Ops) -> None:
    logits = torch.zeros(1, 4096)
    base = {"temperature": 1.0, "seeds": 1, "positions": 1, "streams": 0}
    changes: list[dict[str, int]] = [{}, {"seeds": 2}, {"seeds": 1 + 2**32}, {"positions": 2}, {"streams": 1}]
    tokens = [int(run(ops, logits, [base | change]).token_ids) for change in changes]
    assert len(set(tokens)) == len(changes)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_invalid_rows_fail_alone(ops: Ops, temperature: float) -> None:
    logits = torch.zeros(6, 40)
    logits[:, 7] = 50.0
    logits[1, 3] = math.nan
    logits[2, 3] = math.inf
    logits[3] = -math.inf
    logits[4, 3] = -math.inf
    requests: list[dict[str, Any]] = [{"temperature": temperature} for _ in range(6)]
    requests[5]["bans"] = list(range(40))
    result = run(ops, logits, requests, num_logprobs=2)
    assert result.is_valid.tolist() == [True, False, False, False, True, False]
    assert result.token_ids[[0, 4]].tolist() == [7, 7]
    assert ((result.token_ids >= 0) & (result.token_ids < 40)).all()


def test_filters_of_an_empty_row_are_harmless(ops: Ops) -> None:
    request = {"temperature": 1.0, "top_k": 3, "top_p": 0.5, "min_p": 0.1, "bans": [0, 1, 2, 3, 4]}
    assert run(ops, torch.zeros(1, 5), [request]).is_valid.tolist() == [False]


@pytest.mark.filterwarnings("ignore:overflow encountered in divide")  # NumPy says it where Triton is interpreted
def test_huge_finite_logits_stay_finite(ops: Ops) -> None:
    logits = torch.tensor([[1e38, -1e38, 3e38, 0.0]])
    request = {"temperature": 0.01, "top_p": 0.9, "min_p": 0.1, "seeds": 4}
    result = run(ops, logits, [request])
    assert result.is_valid.all()
    assert result.token_ids.tolist() in ([0], [2])  # both exceed float32 after ÷ T


def test_ids_without_a_token_are_never_drawn(ops: Ops) -> None:
    num_rows = num_rows_for(ops, 50, 4)
    logits = torch.zeros(num_rows, 64)
    logits[:, 60:] = 100.0
    fields = {"bias": {61: 5.0}, "allowed": [2, 62]}
    requests = [{"temperature": float(row % 2), "seeds": row} | fields for row in range(num_rows)]
    assert (run(ops, logits, requests, num_token_ids=60).token_ids == 2).all()


def test_penalties_read_the_row_s_own_slot_up_to_its_position(ops: Ops) -> None:
    """Prompt tokens count for repetition alone; tokens at and after the position count for nothing."""
    tokens = torch.tensor([[9, 9, 9, 9, 9], [1, 2, 2, 5, 5]], dtype=torch.int32)
    logits = torch.zeros(1, 10)
    logits[0, [1, 2, 3, 5]] = torch.tensor([4.0, 3.9, 1.5, 1.9])
    base = {"slots": 1, "positions": 3, "num_prompt_tokens": 1}
    cases: list[tuple[dict[str, float], int]] = [
        ({}, 1),
        ({"repetition_penalty": 2.0}, 1),
        ({"repetition_penalty": 2.2}, 5),
        ({"presence_penalty": 1.9}, 1),
        ({"frequency_penalty": 1.0, "repetition_penalty": 4.0}, 5),
        ({"frequency_penalty": -0.1}, 2),
    ]
    for change, expected in cases:
        assert int(run(ops, logits, [base | change], tokens=tokens).token_ids) == expected, change


def test_no_rows(ops: Ops) -> None:
    result = run(ops, torch.zeros(0, 9), [], num_logprobs=2)
    assert result.token_ids.shape == result.is_valid.shape == (0,)
    assert result.logprobs is not None
    assert result.logprobs.top_ids.shape == (0, 2)
