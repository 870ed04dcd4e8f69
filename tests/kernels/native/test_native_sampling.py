"""The native sampler, on every instruction set: results equal the reference's with ``==``."""

import ctypes
import math
import random
from dataclasses import replace
from typing import Any

import kernel_oracles as oracle
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import make_rows
from native_libraries import library_of
from native_samplers import LOGITS, Sampler, assert_equal, random_request, sound_rows
from torch import Tensor

from kernels.native.library import VECTOR_ISAS
from kernels.native.sampling import prepare_logprobs, prepare_sample
from kernels.ops import load
from kernels.reference.elementwise import exp_nonpositive

NAMES = ("logprobs", "ranks", "top_ids", "top_logprobs")
SIZES = [1, 2, 5, 17, 63, 64, 65, 130, 700, 4200]
reference = load("reference")


@pytest.fixture(scope="module", params=VECTOR_ISAS)
def sampler(request: pytest.FixtureRequest) -> Sampler:
    return Sampler(library_of(request.param))


@settings(max_examples=100, deadline=None, derandomize=True)
@given(kind=st.sampled_from(sorted(LOGITS)), vocab=st.sampled_from(SIZES), seed=st.integers(0, 2**32))
def test_any_mix_of_parameters_draws_the_reference_token(sampler: Sampler, kind: str, vocab: int, seed: int) -> None:
    choose, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    logits = LOGITS[kind](torch.randn(8, vocab, generator=generator))
    if choose.random() < 0.2:
        logits[3, choose.randrange(vocab)] = choose.choice([math.nan, math.inf, -math.inf])
    tokens = torch.randint(0, vocab, (9, 30), generator=generator, dtype=torch.int32)
    slots = [choose.randrange(9) for _ in range(8)]
    requests = [random_request(choose, vocab, tokens[slot].tolist()) | {"slots": slot} for slot in slots]
    num_ids = choose.choice([vocab, vocab, max(1, vocab - 3), vocab + 9])
    rows = make_rows(requests, vocab, num_token_ids=num_ids, num_logprobs=choose.choice([-1, 0, 5, vocab]))
    before = logits.clone()
    found = sampler.sample(logits, tokens, rows)
    assert oracle.same_bits(logits, before), "the logits are not changed"
    assert_equal(found, reference.sample(logits, tokens, rows), sound_rows(logits))


@pytest.mark.parametrize("kind", ["ordinary", "flat", "equal", "many ties", "all magnitudes", "peaked"])
def test_large_vocabularies_draw_the_reference_token(sampler: Sampler, kind: str) -> None:
    vocab = 32_003
    logits = LOGITS[kind](torch.randn(7, vocab, generator=torch.Generator().manual_seed(1)))
    filters: list[dict[str, float]] = [{"top_k": 50}, {"top_k": 5000, "top_p": 0.7}, {"top_p": 0.9}, {"top_p": 0.999}]
    filters += [{"min_p": 0.05}, {"top_k": 30_000, "top_p": 0.2, "min_p": 1e-4}, {}]
    for seed in range(2):
        rows = make_rows([{"temperature": 0.8, "seeds": seed} | fields for fields in filters], vocab, num_logprobs=20)
        found = sampler.sample(logits, torch.zeros(1, 4, dtype=torch.int32), rows)
        assert_equal(found, reference.sample(logits, torch.zeros(1, 4, dtype=torch.int32), rows), sound_rows(logits))


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    values=st.lists(st.integers(-8, 8).map(lambda i: i / 8), min_size=1, max_size=9),
    top_k=st.integers(0, 10),
    top_p=st.one_of(st.just(1.0), st.integers(1, 9).map(lambda i: float(torch.tensor(i / 10)))),
    min_p=st.one_of(st.just(0.0), st.integers(1, 9).map(lambda i: float(torch.tensor(i / 10)))),
)
def test_what_is_drawn_is_what_the_definitions_keep(
    sampler: Sampler, values: list[float], top_k: int, top_p: float, min_p: float
) -> None:
    """Every kept token has a probability of at least 1.7 %, so 800 draws find them all."""
    fields = {"temperature": 1.0, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    rows = make_rows([fields | {"seeds": seed} for seed in range(800)], len(values))
    logits = torch.tensor(values).repeat(800, 1)
    drawn = sampler.sample(logits, torch.zeros(1, 4, dtype=torch.int32), rows).token_ids
    if len(set(values)) > 1 or max(top_p, min_p) < 1:
        assert set(drawn.tolist()) == oracle.kept_tokens(values, top_k, top_p, min_p)


@pytest.mark.parametrize(
    ("seed", "token"),
    [(1343428, 3), (19756429, 58), (31830769, 36), (39896521, 61)],
    ids=["0", "1", "2**32-3", "2**32-1"],
)
def test_the_rarest_numbers_become_the_right_noise(sampler: Sampler, seed: int, token: int) -> None:
    """The Philox word of these is as named: another id wins or loses by 0.001 against the noise in float64."""
    noise = oracle.gumbel(64, 0, 0, seed)
    assert abs(noise[token]) > 3
    rows = make_rows([{"temperature": 1.0, "seeds": seed}] * 2, 64)
    logits = torch.full((2, 64), -math.inf)
    logits[:, token] = 0.0
    logits[:, 7] = torch.from_numpy(noise[token] - noise[7] + [-0.001, 0.001])
    found = sampler.sample(logits, torch.zeros(1, 4, dtype=torch.int32), rows)
    assert found.token_ids.tolist() == [token, 7]


def test_top_p_is_exact_to_the_last_unit(sampler: Sampler) -> None:
    """A weight of 2^40, one less, and sixty of 6: products of their sum with a float32 p that miss 2^40 by less than 1,
    on either side. The second id is kept where the first weighs less than p of all."""
    light = -26.0
    seconds = torch.linspace(-1, 0, 500_001)[:-1]
    weights = [(exp_nonpositive(x) * 2.0**40).round().to(torch.int64) for x in (seconds, torch.tensor([light]))]
    totals = 2**40 + weights[0] + 60 * weights[1]
    mantissas = torch.tensor([2**64 // total for total in totals.tolist()])[:, None] + torch.arange(2)
    excess = (mantissas * totals[:, None]).flatten()  # p * total - 2^40 in units of 2^-24, as 64 bits wrap around
    close = (excess.abs() < 2**24).nonzero().squeeze(1)
    assert (excess[close] > 0).any()
    assert (excess[close] < 0).any()
    for index in close.tolist():
        values = torch.tensor([0.0, float(seconds[index // 2]), *[light] * 60])
        top_p = float(mantissas.flatten()[index]) / 2**24
        rows = make_rows([{"temperature": 1.0, "top_p": top_p, "seeds": seed} for seed in range(40)], 62)
        found = sampler.sample(values.repeat(40, 1), torch.zeros(1, 4, dtype=torch.int32), rows)
        assert set(found.token_ids.tolist()) == ({0, 1} if excess[index] > 0 else {0})


def test_a_bad_word_needs_its_whole_prefix(sampler: Sampler) -> None:
    """What lies before the slot's first token is another sequence's."""
    tokens = torch.full((2, 4), 5, dtype=torch.int32)
    logits = torch.arange(9.0).repeat(2, 1)
    rows = make_rows([{"slots": 1, "positions": end, "bad_words": [[5, 5, 5, 8]]} for end in (2, 3)], 9)
    assert sampler.sample(logits, tokens, rows).token_ids.tolist() == [8, 7]


def test_long_histories_count_for_penalties(sampler: Sampler) -> None:
    """Repeated ids, ids without a logit, all of one id; the table's end."""
    generator = torch.Generator().manual_seed(4)
    vocab, length = 500, 3000
    tokens = torch.randint(0, vocab, (4, length), generator=generator, dtype=torch.int32)
    tokens[1] = 7
    tokens[2, ::3] = vocab + 5
    tokens[3, 10:] = -1
    logits = torch.randn(40, vocab, generator=generator)
    requests = [
        {"slots": row % 4, "positions": position, "num_prompt_tokens": prompt, "seeds": row, "temperature": row % 2}
        | {"repetition_penalty": 1.2, "frequency_penalty": 0.003, "presence_penalty": -0.4}
        for row, (position, prompt) in enumerate([(length, 1000), (length + 9, 0), (1, 1), (0, 0), (77, 90)] * 8)
    ]
    rows = make_rows(requests, vocab)
    found, expected = sampler.sample(logits, tokens, rows), reference.sample(logits, tokens, rows)
    assert_equal(found, expected, sound_rows(logits))


@settings(max_examples=10, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32))
def test_a_row_has_the_same_bits_in_any_batch_on_any_threads(sampler: Sampler, seed: int) -> None:
    choose, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    vocab = choose.choice([50, 1027, 5000])
    # The rows are views of a wider buffer whose rest is NaN.
    wide = torch.full((6, vocab + 40), math.nan)
    wide[:, 3 : 3 + vocab] = torch.randn(6, vocab, generator=generator) * 3
    logits = wide[:, 3 : 3 + vocab]
    tokens = torch.randint(0, vocab, (6, 20), generator=generator, dtype=torch.int32)
    requests = [random_request(choose, vocab, tokens[row].tolist()) | {"slots": row} for row in range(6)]

    def run(order: list[int]) -> list[Tensor]:
        rows = make_rows([requests[row] for row in order], vocab, num_logprobs=4)
        samples = sampler.sample(logits[order] if order != list(range(6)) else logits, tokens, rows)
        assert samples.logprobs is not None
        return [samples.token_ids, samples.is_valid, *(getattr(samples.logprobs, name) for name in NAMES)]

    together = run(list(range(6)))
    assert together[1].any()
    order = choose.sample(range(6), 6)
    for threads in (2, 1):
        sampler.library.set_num_threads(threads)
        for found, expected in zip(run(order), together, strict=True):
            assert oracle.same_bits(found, expected[order])
    for row in range(6):
        for found, expected in zip(run([row]), together, strict=True):
            assert oracle.same_bits(found, expected[row : row + 1])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("place", [0, 20, 64, 69])
def test_broken_rows_fail_alone(sampler: Sampler, temperature: float, place: int) -> None:
    """Also where the NaN lies beyond the ids that have a token, and where the row is adjusted."""
    requests: list[dict[str, Any]] = [{"temperature": temperature, "seeds": row} for row in range(6)]
    requests[4]["bias"] = {1: 2.0}
    rows = make_rows(requests, 70, num_token_ids=69, num_logprobs=3)
    tokens = torch.zeros(1, 4, dtype=torch.int32)
    logits = torch.randn(6, 70, generator=torch.Generator().manual_seed(0))
    sound = sampler.sample(logits, tokens, rows)
    assert sound.is_valid.all()
    logits[1, place], logits[3, place], logits[4, place], logits[5] = math.nan, math.inf, math.nan, -math.inf
    found = sampler.sample(logits, tokens, rows)
    assert found.is_valid.tolist() == [True, False, True, False, False, False]
    assert found.token_ids[[1, 3, 4, 5]].tolist() == [0] * 4
    assert torch.equal(found.token_ids[[0, 2]], sound.token_ids[[0, 2]])
    assert found.logprobs is not None
    assert sound.logprobs is not None
    for name in NAMES:
        assert oracle.same_bits(getattr(found.logprobs, name)[[0, 2]], getattr(sound.logprobs, name)[[0, 2]])
    assert found.logprobs.logprobs[[1, 3, 4, 5]].isnan().all()


def test_a_row_of_which_nothing_is_left_is_invalid(sampler: Sampler) -> None:
    masks: list[dict[str, Any]] = [{"bans": list(range(17))}, {"allowed": [17, -1, 99]}, {"bitmask": []}]
    masks += [{"bias": dict.fromkeys(range(17), -math.inf)}, {"bad_words": [[token] for token in range(17)]}]
    filters: list[dict[str, Any]] = [{}, {"temperature": 1.0}, {"temperature": 1.0, "top_k": 2, "top_p": 0.5}]
    requests = [mask | fields for mask in masks for fields in filters] + [{"bans": list(range(16))}]
    found = sampler.sample(torch.zeros(16, 17), torch.zeros(1, 4, dtype=torch.int32), make_rows(requests, 17))
    assert found.is_valid.tolist() == [False] * 15 + [True]
    assert found.token_ids.tolist() == [0] * 15 + [16]


def test_ties_go_to_the_lowest_id(sampler: Sampler) -> None:
    """At temperature 0, and where the logits are so large that the noise rounds away."""
    logits = torch.zeros(4, 3000)
    logits[0, [777, 2900]], logits[1, [2000, 2999]] = 5.0, 1e9
    logits[2], logits[3, 63:] = 1e9, 1e9
    for temperature in (0.0, 1.0):
        requests = [{"temperature": temperature if row else 0.0, "seeds": row} for row in range(4)]
        found = sampler.sample(logits, torch.zeros(1, 4, dtype=torch.int32), make_rows(requests, 3000))
        assert found.token_ids.tolist() == [777, 2000, 0, 63]


def test_what_the_kernel_cannot_read_is_refused(sampler: Sampler) -> None:
    logits, tokens = torch.zeros(2, 9), torch.zeros(1, 4, dtype=torch.int32)
    rows = make_rows([{"bitmask": [1]}, {}], 9)
    assert sampler.sample(logits, tokens, rows).token_ids.tolist() == [1, 0]
    for changed, error in [
        (replace(rows, bitmask=None), ValueError),
        (replace(rows, bitmask=torch.zeros(1, 0, dtype=torch.int32)), ValueError),
        (replace(rows, slots=rows.slots[:1]), ValueError),
        (replace(rows, seeds=torch.zeros(4, dtype=torch.int64)[::2]), ValueError),
        (replace(rows, bias_offsets=rows.bias_offsets[:2]), ValueError),
        (replace(rows, top_p=rows.top_p.double()), TypeError),
    ]:
        with pytest.raises(error):
            sampler.sample(logits, tokens, changed)
    for bad_logits, bad_tokens, error in [
        (logits.double(), tokens, TypeError),
        (logits, tokens.long(), TypeError),
        (torch.zeros(9, 2).T, tokens, ValueError),
        (logits[0], tokens, ValueError),
    ]:
        with pytest.raises(error):
            sampler.sample(bad_logits, bad_tokens, rows)
    for ids, count, error in [(torch.zeros(1, dtype=torch.int64), 1, ValueError), (torch.zeros(2), 1, TypeError)]:
        with pytest.raises(error):
            sampler.logprobs(logits, ids, count)
    with pytest.raises(ValueError, match="num_top"):
        sampler.logprobs(logits, torch.zeros(2, dtype=torch.int64), -1)


def test_no_rows(sampler: Sampler) -> None:
    samples = sampler.sample(torch.zeros(0, 9), torch.zeros(1, 4, dtype=torch.int32), make_rows([], 9, num_logprobs=2))
    assert samples.token_ids.shape == samples.is_valid.shape == (0,)
    assert samples.logprobs is not None
    assert samples.logprobs.top_ids.shape == (0, 2)


def test_arguments_are_eight_bytes_a_field() -> None:
    rows = make_rows([{}], 9)
    _, sample = prepare_sample(torch.zeros(1, 9), torch.zeros(1, 4, dtype=torch.int32), rows, Sampler.empty)
    _, logprobs = prepare_logprobs(torch.zeros(1, 9), torch.zeros(1, dtype=torch.int64), 0, Sampler.empty)
    for args in (sample, logprobs):
        assert {getattr(type(args), field[0]).offset % 8 for field in args._fields_} == {0}
        assert ctypes.sizeof(args) % 8 == 0
