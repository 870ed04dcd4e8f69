"""Native logprobs, on every instruction set, against float64 and a stable sort."""

import math

import kernel_oracles as oracle
import pytest
import torch
from native_libraries import library_of
from native_samplers import LOGITS, Sampler

from kernels.native.library import VECTOR_ISAS


@pytest.fixture(scope="module", params=VECTOR_ISAS)
def sampler(request: pytest.FixtureRequest) -> Sampler:
    return Sampler(library_of(request.param))


@pytest.mark.parametrize("vocab", [1, 5, 17, 1000, 49_152])
def test_logprobs_match_float64(sampler: Sampler, vocab: int) -> None:
    logits = torch.randn(5, vocab, generator=torch.Generator().manual_seed(vocab)) * 6
    ids = torch.arange(5) * 31 % vocab
    found, expected = sampler.logprobs(logits, ids, 20), oracle.logprobs(logits)
    order = logits.sort(descending=True, stable=True).indices[:, : min(20, vocab)]
    assert torch.equal(found.top_ids, order)
    torch.testing.assert_close(found.logprobs.double(), expected[torch.arange(5), ids], rtol=1e-6, atol=2e-6)
    torch.testing.assert_close(found.top_logprobs.double(), expected.gather(1, order), rtol=1e-6, atol=2e-6)
    assert found.ranks.tolist() == [1 + int((row > row[i]).sum()) for row, i in zip(logits, ids.tolist(), strict=True)]


@pytest.mark.parametrize("kind", sorted(LOGITS))
def test_the_most_likely_ids_are_those_of_a_stable_sort(sampler: Sampler, kind: str) -> None:
    logits = LOGITS[kind](torch.randn(3, 1300, generator=torch.Generator().manual_seed(2)))
    logits[1, 5], logits[2, 600] = math.nan, math.inf
    sortable = logits.nan_to_num(-math.inf, math.inf, -math.inf)
    for count in (1, 20, 40, 1300):
        expected = sortable.sort(descending=True, stable=True).indices[:, :count]
        assert torch.equal(sampler.logprobs(logits, torch.zeros(3, dtype=torch.int64), count).top_ids, expected)
