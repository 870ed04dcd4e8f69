"""top_k, top_p and min_p over one row, by exact thresholds: ties stay together, no sort order shows (design 7.4)."""

import math
from fractions import Fraction

import torch
from torch import Tensor

from kernels.reference.elementwise import exp_nonpositive

FIXED_POINT = 2.0**40  # a weight of 1; sums of up to 2²³ weights fit in 64 bits
FIRST_LOOK = 1024


def drop_unlikely(scaled: Tensor, top_k: int, top_p: float, min_p: float) -> None:
    """Set the dropped entries of ``scaled`` f32 [V] (logits over temperature) to −inf, in place."""
    if 0 < top_k < len(scaled):
        drop_below(scaled, top_k_threshold(scaled, top_k))
    if top_p >= 1.0 and min_p <= 0.0:
        return
    largest = scaled.amax()
    if largest == -math.inf:
        return
    weights = exp_nonpositive(scaled - largest)
    if top_p < 1.0:
        drop_below(scaled, top_p_threshold(scaled, weights, top_p))
    if min_p > 0.0:
        scaled.masked_fill_(weights < min_p, -math.inf)


def drop_below(scaled: Tensor, threshold: Tensor) -> None:
    """Drop what is smaller than ``threshold`` f32 []."""
    scaled.masked_fill_(scaled < threshold, -math.inf)


def top_k_threshold(scaled: Tensor, top_k: int) -> Tensor:
    """The smallest value that fewer than ``top_k`` entries exceed: the top_k-th largest, repeats counted."""
    return scaled.topk(top_k, sorted=False).values.amin()


def top_p_threshold(scaled: Tensor, weights: Tensor, top_p: float) -> Tensor:
    """The smallest value of ``scaled`` whose strictly larger entries sum to less than ``top_p`` of all weights.

    Weights are rounded to multiples of 2⁻⁴⁰ of the largest and summed as integers, which has no order.
    """
    fixed = (weights * FIXED_POINT).round_().to(torch.int64)
    needed = math.ceil(Fraction(top_p) * int(fixed.sum()))
    for count in (min(FIRST_LOOK, len(scaled)), len(scaled)):
        values, ids = scaled.topk(count)
        sums = fixed[ids].cumsum(0)
        if sums[-1] >= needed:
            break
    return values[torch.searchsorted(sums, needed)]
