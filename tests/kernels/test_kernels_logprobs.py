"""Log-softmax of raw logits, ranks by strict counting, and the most likely ids."""

import math
from typing import Any

import kernel_oracles as oracle
import pytest
import torch
from kernel_cases import is_interpreted, make_rows
from kernel_oracles import same_bits

from kernels.ops import Ops

NAMES = ("logprobs", "ranks", "top_ids", "top_logprobs")


@pytest.mark.parametrize("vocab_size", [1, 5, 1000, 49_152])
def test_logprobs_match_float64(ops: Ops, vocab_size: int) -> None:
    generator = torch.Generator().manual_seed(vocab_size)
    logits = torch.randn(5, vocab_size, generator=generator) * 6
    ids = torch.randint(0, vocab_size, (5,), generator=generator)
    result = ops.logprobs(logits, ids, 4)
    expected = oracle.logprobs(logits)
    count = min(4, vocab_size)
    torch.testing.assert_close(result.logprobs.double(), expected[torch.arange(5), ids], rtol=1e-6, atol=2e-6)
    torch.testing.assert_close(result.top_logprobs.double(), expected.topk(count).values, rtol=1e-6, atol=2e-6)
    assert torch.equal(result.top_ids, logits.topk(count).indices)
    assert result.ranks.tolist() == [
        1 + sum(value > row[token] for value in row) for row, token in zip(logits.tolist(), ids.tolist(), strict=True)
    ]
    dtypes = [getattr(result, name).dtype for name in NAMES]
    assert dtypes == [torch.float32, torch.int64, torch.int64, torch.float32]


def test_ties_list_the_lower_id_first(ops: Ops) -> None:
    logits = torch.zeros(2, 3000)
    logits[0, [5, 2000, 2999]] = 1.0
    result = ops.logprobs(logits, torch.tensor([2000, 9]), 5)
    assert result.top_ids.tolist() == [[5, 2000, 2999, 0, 1], [0, 1, 2, 3, 4]]
    assert result.ranks.tolist() == [1, 1]


def test_masked_logits_have_minus_infinity(ops: Ops) -> None:
    logits = torch.tensor([[0.0, -math.inf, 0.0, -math.inf]])
    result = ops.logprobs(logits, torch.tensor([3]), 4)
    assert result.logprobs.tolist() == [-math.inf]
    assert result.ranks.tolist() == [3]
    assert result.top_ids.tolist() == [[0, 2, 1, 3]]
    assert result.top_logprobs[0, :2].tolist() == pytest.approx([math.log(0.5)] * 2)


@pytest.mark.parametrize("threads", [1, 2])
def test_rows_depend_on_themselves_alone(ops: Ops, threads: int) -> None:
    torch.set_num_threads(threads)
    num_rows = 3 if is_interpreted(ops) else 9
    logits = torch.randn(num_rows, 20_011, generator=torch.Generator().manual_seed(0)) * 5
    ids = torch.arange(num_rows) * 1000
    together = ops.logprobs(logits, ids, 20)
    backwards = ops.logprobs(logits.flip(0), ids.flip(0), 20)
    torch.set_num_threads(1)
    for row in range(num_rows):
        alone = ops.logprobs(logits[row : row + 1], ids[row : row + 1], 20)
        for name in NAMES:
            assert same_bits(getattr(alone, name)[0], getattr(together, name)[row])
            assert same_bits(getattr(alone, name)[0], getattr(backwards, name)[num_rows - 1 - row])


def test_a_broken_row_leaves_the_others_alone(ops: Ops) -> None:
    logits = torch.randn(4, 50, generator=torch.Generator().manual_seed(0))
    ids = torch.arange(4)
    expected = ops.logprobs(logits, ids, 3)
    logits[1, 20], logits[2] = math.nan, -math.inf
    result = ops.logprobs(logits, ids, 3)
    for name in NAMES:
        assert same_bits(getattr(result, name)[[0, 3]], getattr(expected, name)[[0, 3]])
    assert result.logprobs[1:3].isnan().all()
    assert ((result.top_ids >= 0) & (result.top_ids < 50)).all()


def test_sample_reports_the_raw_logits_logprobs(ops: Ops) -> None:
    """Temperature, bans and penalties do not show in logprobs."""
    logits = torch.randn(3, 30, generator=torch.Generator().manual_seed(8))
    best = int(logits[0].argmax())
    requests: list[dict[str, Any]] = [{"bans": [best]}, {"temperature": 0.5, "seeds": 3}, {"bias": {4: 50.0}}]
    tokens = torch.zeros(1, 4, dtype=torch.int32)
    for num_top in (0, 2):
        samples = ops.sample(logits, tokens, make_rows(requests, 30, num_logprobs=num_top))
        expected = ops.logprobs(logits, samples.token_ids, num_top)
        assert samples.logprobs is not None
        assert samples.logprobs.top_ids.shape == (3, num_top)
        assert all(same_bits(getattr(samples.logprobs, name), getattr(expected, name)) for name in NAMES)
        assert samples.logprobs.ranks[0] > 1
    assert ops.sample(logits, tokens, make_rows(requests, 30)).logprobs is None
