"""The Triton sampler against the reference and exact integers: what is kept, what is drawn, what is left alone."""

import math
import random
from dataclasses import replace
from fractions import Fraction
from typing import Any

import kernel_oracles as oracle
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from kernel_cases import make_rows
from kernel_oracles import same_bits
from torch import Tensor

from kernels.ops import Ops, SampleKinds, SampleRows, Samples, load
from kernels.reference.elementwise import exp_nonpositive
from kernels.reference.filters import drop_unlikely, top_p_threshold

pytestmark = [
    pytest.mark.parametrize("ops", ["triton"], indirect=True),
    pytest.mark.filterwarnings("ignore:overflow encountered"),  # NumPy says it where Triton is interpreted
]

FLOAT32_MAX = torch.finfo(torch.float32).max
FILTERS_ONLY = SampleKinds(draws=True, penalties=False, lists=False, filters=True)
NO_SHRINKING = [Phase.generate]  # a smaller seed is no simpler, and each try takes a while
SHARES = [0.0, 1e-45, 1e-9, 0.01, 0.3, 0.5, 0.9, 0.99, 1 - 2.0**-24, 1.0]


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def kept_by_kernels(logits: Tensor, requests: list[dict[str, Any]]) -> list[set[int]]:
    """What each row's floor keeps: logits as they are, not divided."""
    from kernels.triton.filters import find_floors  # after the interpreter was chosen
    from kernels.triton.sampling_adjustments import LogitsSource
    from kernels.triton.sampling_chunks import Chunks

    rows = make_rows([{"temperature": 1.0} | request for request in requests], logits.shape[1])
    source = LogitsSource(logits, logits, logits, logits.shape[1], has_adjusted=False)
    _, floors = find_floors(source, rows, Chunks.of(logits.shape[1]))
    kept = (logits >= floors[:, None]) & (logits > -math.inf)
    return [set(row.nonzero().squeeze(1).tolist()) for row in kept]


def kept_by_reference(logits: Tensor, request: dict[str, Any]) -> set[int]:
    scaled = logits.clone()
    drop_unlikely(scaled, request.get("top_k", 0), request.get("top_p", 1.0), 0.0)
    return set((scaled > -math.inf).nonzero().squeeze(1).tolist())


def random_logits(choose: random.Random, seed: int, vocab: int) -> Tensor:
    x = normal(seed, vocab)
    kinds = [
        x * 3,
        x * 0.01,
        x * 0 + 1,
        (x * 4).round() / 2,
        torch.where(x > 0, 0.0, -0.0),
        (x * 1e38).clamp(-FLOAT32_MAX, FLOAT32_MAX),
        torch.where(x > 0, x * 3, -math.inf),
        x * 60,
        torch.full_like(x, -math.inf),
    ]
    return choose.choice(kinds)


@settings(max_examples=7, deadline=None, derandomize=True, phases=NO_SHRINKING)
@given(seed=st.integers(0, 2**32), vocab=st.integers(2, 90))
def test_floors_are_those_of_the_reference(ops: Ops, seed: int, vocab: int) -> None:
    choose = random.Random(seed)
    logits = torch.stack([random_logits(choose, seed % 2**30 + row, vocab) for row in range(3)])
    requests: list[dict[str, Any]] = [
        {"top_p": choose.choice(SHARES)},
        {"top_k": choose.choice([1, 2, 7, max(1, vocab // 2), vocab - 1, vocab, 2 * vocab])},
        {"top_k": choose.randrange(1, vocab + 1), "top_p": choose.choice(SHARES)},
    ]
    kept = kept_by_kernels(logits, requests)
    for row, request in enumerate(requests):
        assert kept[row] == kept_by_reference(logits[row], request), (request, logits[row])


def test_floors_of_a_vocabulary_of_several_chunks(ops: Ops) -> None:
    """Peaked and flat rows: the list of the largest values is short, and longer than a block."""
    logits = torch.stack([normal(0, 5001) * 4, normal(1, 5001) / 8, normal(2, 5001)])
    requests: list[dict[str, Any]] = [{"top_p": 0.9}, {"top_p": 0.7}, {"top_k": 2500, "top_p": 0.95}]
    kept = kept_by_kernels(logits, requests)
    for row, request in enumerate(requests):
        assert kept[row] == kept_by_reference(logits[row], request), request


@pytest.mark.parametrize("top_p", [1e-45, 3e-39, 1e-12, 0.3, 0.9, 1 - 2.0**-24])
def test_a_share_is_rounded_up_exactly(ops: Ops, top_p: float) -> None:
    """Small shares, denormal ones too, and the largest below 1."""
    logits = torch.tensor([[0.0, -1.0, -2.0, -4.0, -28.0, -29.0, -90.0, 0.0]])
    share = float(torch.tensor(top_p))
    weights = [round(Fraction(math.exp(value)) * 2**40) for value in logits[0].tolist()]
    floor = top_p_threshold(logits[0], logits[0].exp(), share)
    needed = math.ceil(Fraction(share) * sum(weights))
    expected = {
        i
        for i, x in enumerate(logits[0].tolist())
        if sum(w for w, y in zip(weights, logits[0], strict=True) if y > x) < needed
    }
    assert expected == set((logits[0] >= floor).nonzero().squeeze(1).tolist()), "the tests' own oracle"
    assert kept_by_kernels(logits, [{"top_p": top_p}])[0] == expected


def test_half_a_unit_of_weight_is_not_enough(ops: Ops) -> None:
    """Of 2⁴¹ + 1 the half is more than the largest's 2⁴⁰, so the second is kept."""
    values = torch.arange(-28 * 64, 0) / 64
    weights = (exp_nonpositive(values) * 2.0**40).round().to(torch.int64)
    missing, chosen = 2**40 + 1, [0.0]
    while missing > 0:
        index = int((weights <= missing).nonzero().max())
        chosen.append(float(values[index]))
        missing -= int(weights[index])
    logits = torch.tensor([chosen])
    second = {token for token, value in enumerate(chosen) if value == chosen[1]}
    assert kept_by_reference(logits[0], {"top_p": 0.5}) == {0} | second, "the tests' own oracle"
    assert kept_by_kernels(logits, [{"top_p": 0.5}])[0] == {0} | second


def random_request(choose: random.Random, vocab: int, history: list[int]) -> dict[str, Any]:
    """A few of all parameters; ids may lie outside the vocabulary."""

    def some(most: int) -> list[int]:
        return [choose.randrange(-2, vocab + 3) for _ in range(choose.randrange(most))]

    end = choose.randrange(len(history) + 3)
    choices: dict[str, Any] = {
        "top_k": choose.randrange(1, vocab + 2),
        "top_p": choose.choice(SHARES),
        "min_p": choose.choice([1e-9, 0.001, 0.05, 0.5, 1.0]),
        "repetition_penalty": choose.uniform(0.5, 2),
        "frequency_penalty": choose.uniform(-2, 2),
        "presence_penalty": choose.uniform(-2, 2),
        "bias": {token: choose.uniform(-5, 5) for token in some(6)},
        "bans": some(12),
        "allowed": some(vocab),
        "bitmask": [token for token in range(vocab) if choose.random() < 0.7],
        "bad_words": [[*history[:end][-2:], 0], [vocab - 1, 1], [3], [5] * 40],
    }
    return {name: value for name, value in choices.items() if choose.random() < 0.35} | {
        "positions": end,
        "num_prompt_tokens": choose.randrange(end + 2),
        "seeds": choose.randrange(-(2**63), 2**63),
        "streams": choose.randrange(4),
        "temperature": choose.choice([0.0, 0.003, 0.1, 0.8, 1.0, 3.0]),
    }


def assert_like_reference(ops: Ops, logits: Tensor, tokens: Tensor, rows: SampleRows) -> Samples:
    expected, found = load("reference").sample(logits, tokens, rows), ops.sample(logits, tokens, rows)
    assert torch.equal(found.is_valid, expected.is_valid)
    assert torch.equal(found.token_ids, expected.token_ids)
    if expected.logprobs is not None:
        assert found.logprobs is not None
        assert torch.equal(found.logprobs.ranks, expected.logprobs.ranks)
        assert torch.equal(found.logprobs.top_ids, expected.logprobs.top_ids)
        is_sound = logits.amax(dim=1).isfinite()
        for name in ("logprobs", "top_logprobs"):
            values, wanted = getattr(found.logprobs, name), getattr(expected.logprobs, name)
            torch.testing.assert_close(values[is_sound], wanted[is_sound], rtol=2e-6, atol=4e-6)
            assert values[~is_sound].isnan().all()
    return found


@settings(max_examples=7, deadline=None, derandomize=True, phases=NO_SHRINKING)
@given(seed=st.integers(0, 2**32), vocab=st.integers(5, 70))
def test_all_parameters_mixed_draw_the_token_of_the_reference(ops: Ops, seed: int, vocab: int) -> None:
    choose = random.Random(seed)
    logits = torch.stack([random_logits(choose, seed % 2**30 + row, vocab) for row in range(3)])
    if choose.random() < 0.3:
        logits[choose.randrange(3), choose.randrange(vocab)] = choose.choice([math.nan, math.inf, -math.inf])
    tokens = torch.tensor([[choose.randrange(vocab) for _ in range(20)] for _ in range(3)], dtype=torch.int32)
    requests = [random_request(choose, vocab, tokens[2 - row].tolist()) | {"slots": 2 - row} for row in range(3)]
    extra = {"num_token_ids": choose.choice([vocab, vocab - 3]), "num_logprobs": choose.choice([-1, 0, 3])}
    before = logits.clone()
    assert_like_reference(ops, logits, tokens, make_rows(requests, vocab, **extra))
    assert same_bits(logits, before)


def test_greedy_rows_may_leave_all_else_out(ops: Ops) -> None:
    logits = normal(4, 3, 50)
    rows = replace(make_rows([{}] * 3, 50), kinds=SampleKinds(False, False, False, False))
    assert torch.equal(ops.sample(logits, torch.zeros(1, 2, dtype=torch.int32), rows).token_ids, logits.argmax(1))


def test_a_bitmask_alone_is_enough_to_mask(ops: Ops) -> None:
    logits = normal(5, 2, 50)
    rows = make_rows([{"bitmask": [3, 49]}, {}], 50)
    assert_like_reference(
        ops, logits, torch.zeros(1, 2, dtype=torch.int32), replace(rows, kinds=SampleKinds(False, False, False, False))
    )


def test_the_last_bias_of_an_id_counts(ops: Ops) -> None:
    """More entries than a block of them, one id in several blocks."""
    logits = torch.zeros(1, 90)
    rows = replace(
        make_rows([{}], 90),
        bias_offsets=torch.tensor([0, 80]),
        bias_ids=torch.tensor([7, *range(10, 50), 7, *range(50, 87), 7]),
        bias_values=torch.tensor([9.0, *[1.0] * 40, 8.0, *[1.0] * 37, 0.5]),
    )
    assert assert_like_reference(ops, logits, torch.zeros(1, 2, dtype=torch.int32), rows).token_ids.tolist() == [10]


def test_long_histories_are_counted_by_several_programs(ops: Ops) -> None:
    """A token in three is 5; those before 1000 are a prompt; ids outside the vocabulary are nobody's."""
    tokens = torch.randint(-1, 45, (1, 3000), generator=torch.Generator().manual_seed(6), dtype=torch.int32)
    tokens[0, ::3] = 5
    logits = torch.full((5, 40), -300.0)
    logits[:, 5] = 300.0
    output = tokens[0, 1000:2900].tolist()
    value = 300.0 - output.count(5) * 0.25 - 0.125
    requests = [{"positions": 2900, "num_prompt_tokens": 1000} for _ in range(5)]
    for request in requests:
        request |= {"frequency_penalty": 0.25, "presence_penalty": 0.125}  # type: ignore[dict-item]
    logits[:, 3] = value + output.count(3) * 0.25 + 0.125 + torch.tensor([-2.0, -0.125, 0.0, 0.125, 2.0])
    found = assert_like_reference(ops, logits, tokens, make_rows(requests, 40))
    assert found.token_ids.tolist() == [5, 5, 3, 3, 3]


@pytest.mark.parametrize(
    ("seed", "position", "stream"), [(0, 0, 0), (-1, 2**31 + 5, 3), (2**63 - 1, 7, 2**31), (0x123456789ABCDEF0, 1, 1)]
)
def test_noise_is_that_of_the_definition(ops: Ops, seed: int, position: int, stream: int) -> None:
    """Equal logits: the token drawn is the one with the most noise, then the one with the most of the others."""
    noise = oracle.gumbel(11, position, stream, seed)
    request = {"temperature": 1.0, "seeds": seed, "positions": position, "streams": stream}
    logits = torch.zeros(1, 11)
    kinds = SampleKinds(draws=True, penalties=False, lists=False, filters=False)
    for expected in sorted(range(11), key=lambda token: -noise[token])[:6]:
        rows = replace(make_rows([request], 11), kinds=kinds)
        found = ops.sample(logits, torch.zeros(1, 2, dtype=torch.int32), rows)
        assert found.token_ids.tolist() == [expected]
        logits[0, expected] = -math.inf


def test_noise_has_the_bits_of_the_reference(ops: Ops) -> None:
    """Logits that make up for the reference's noise: every score is the same, so the lowest id wins."""
    from kernels.reference.philox import all_token_words, log_exponential

    noise = log_exponential(all_token_words(64, 3, 1, 99, torch.device("cpu")))
    request = {"temperature": 1.0, "seeds": 99, "positions": 3, "streams": 1}
    kinds = SampleKinds(draws=True, penalties=False, lists=False, filters=False)
    rows = replace(make_rows([request], 64), kinds=kinds)
    found = ops.sample(noise[None], torch.zeros(1, 2, dtype=torch.int32), rows)
    assert found.token_ids.tolist() == [0]


def test_more_rows_than_keys_are_made_for_at_once(ops: Ops) -> None:
    logits = (normal(7, 67, 6) * 2).round()
    ids = torch.arange(67) % 6
    found, expected = ops.logprobs(logits, ids, 9), load("reference").logprobs(logits, ids, 9)
    assert torch.equal(found.top_ids, expected.top_ids)
    assert torch.equal(found.ranks, expected.ranks)
    torch.testing.assert_close(found.top_logprobs, expected.top_logprobs)


def test_a_bitmask_must_cover_all_ids(ops: Ops) -> None:
    rows = replace(make_rows([{"bitmask": [1]}], 64), bitmask=torch.zeros(1, 1, dtype=torch.int32))
    with pytest.raises(ValueError, match="the bitmask has 1 words a row, too few for 64 ids"):
        ops.sample(torch.zeros(1, 64), torch.zeros(1, 2, dtype=torch.int32), rows)
