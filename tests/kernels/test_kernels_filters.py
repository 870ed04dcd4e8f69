"""top_k, top_p and min_p of the reference backend keep exactly what their definitions keep."""

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_oracles import kept_tokens

from kernels.reference.filters import drop_unlikely

# Steps of ½ give many ties.
VALUES = st.lists(st.one_of(st.integers(-12, 12).map(lambda i: i / 2), st.just(-math.inf)), min_size=1, max_size=40)
# Tenths, whose sums no set of exponentials of halves meets exactly.
SHARES = st.integers(1, 9).map(lambda i: float(torch.tensor(i / 10)))


def kept_by_kernel(values: list[float], top_k: int, top_p: float, min_p: float) -> set[int]:
    scaled = torch.tensor(values)
    drop_unlikely(scaled, top_k, top_p, min_p)
    kept = (scaled > -math.inf).nonzero().squeeze(1)
    assert torch.equal(scaled[kept], torch.tensor(values)[kept]), "kept values stay as they are"
    return set(kept.tolist())


@settings(max_examples=200, deadline=None, derandomize=True)
@given(VALUES, st.integers(0, 45), st.one_of(st.just(1.0), SHARES), st.one_of(st.just(0.0), SHARES))
def test_kept_tokens_follow_the_definitions(values: list[float], top_k: int, top_p: float, min_p: float) -> None:
    if max(values) == -math.inf:
        assert kept_by_kernel(values, top_k, top_p, min_p) == set()
    elif len(set(values)) > 1 or max(top_p, min_p) < 1:
        assert kept_by_kernel(values, top_k, top_p, min_p) == kept_tokens(values, top_k, top_p, min_p)


def test_ties_stay_together() -> None:
    assert kept_by_kernel([1.0, 3.0, 1.0, 1.0], 2, 1.0, 0.0) == {0, 1, 2, 3}
    assert kept_by_kernel([0.0] * 4, 0, 0.1, 0.0) == {0, 1, 2, 3}
    assert kept_by_kernel([5.0, 5.0, 0.0], 1, 1.0, 0.0) == {0, 1}


def test_top_p_is_a_strict_bound_on_the_larger_ones() -> None:
    """The first of ½, ¼, ¼ has a mass of exactly ½, which is not less than ½."""
    equal_pair = [math.log(2), 0.0, 0.0]
    assert kept_by_kernel(equal_pair, 0, 0.5, 0.0) == {0}
    assert kept_by_kernel(equal_pair, 0, 0.51, 0.0) == {0, 1, 2}
    assert kept_by_kernel(equal_pair, 0, 0.49, 0.0) == {0}
    assert kept_by_kernel(equal_pair, 0, 0.0, 0.0) == {0}


def test_top_p_counts_what_top_k_left() -> None:
    values = [math.log(p) for p in (0.4, 0.3, 0.2, 0.1)]
    assert kept_by_kernel(values, 0, 0.5, 0.0) == {0, 1}
    assert kept_by_kernel(values, 2, 0.5, 0.0) == {0}  # 0.4 / 0.7 is more than ½


def test_top_p_over_a_flat_vocabulary_looks_beyond_its_first_candidates() -> None:
    generator = torch.Generator().manual_seed(3)
    scaled = torch.randn(20_000, generator=generator) / 4
    order = scaled.sort(descending=True, stable=True)
    shares = order.values.double().softmax(0)
    for top_p in (0.01, 0.3, 0.9, 0.999):
        count = int((shares.cumsum(0) - shares < top_p).sum())
        kept = kept_by_kernel(scaled.tolist(), 0, top_p, 0.0)
        assert kept == set(order.indices[: len(kept)].tolist())
        assert abs(len(kept) - count) <= 1
