"""Linear layers with weights of four bits and int8 inputs, both in groups of 32 inputs (design 7.3).

As with int8, float32 sums a group's products exactly in whatever order.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.reference.linear import add_in_tree, check_weight, multiply, pad_panel
from kernels.reference.linear_scaled import INT8, SMALLEST, quantize

GROUP_SIZE = 32
LARGEST = 15.0
LARGEST_SCALE = 4095.0
SHARES = (1.0, 0.93, 0.86, 0.8, 0.74)  # of the scale at which nothing is cut off


@dataclass(slots=True)
class Int4Group:
    """``values``: whole numbers as float32, their zero subtracted, [padded N, 32]; ``scales`` f32 [N]: of the group in
    units of its output's."""

    values: Tensor
    scales: Tensor


@dataclass(slots=True)
class Int4Linear:
    """``groups[segment][group]``; ``scales`` f32 [N]."""

    groups: tuple[tuple[Int4Group, ...], ...]
    scales: Tensor
    num_outputs: int
    num_inputs: int
    layout_id: str = "ref-int4"


def pack_linear(weight: Tensor, segments: int) -> Int4Linear:
    """Quantize [N, K]. ValueError: another dtype than float32 or bfloat16, or segments that do not divide K."""
    num_outputs, num_inputs = check_weight(weight, segments)
    parts = [torch.split(part, GROUP_SIZE, dim=1) for part in weight.to(torch.float32).chunk(segments, dim=1)]
    found = [[best_scale(group) for group in part] for part in parts]
    largest = torch.stack([scales for part in found for scales, _ in part]).amax(0)
    is_finite = torch.stack([ranges(group) for part in parts for group in part]).isfinite().all(0)
    is_usable = is_finite & (largest > SMALLEST)
    scales = torch.where(is_usable, largest / LARGEST_SCALE, 0.0)
    inverse = torch.where(is_usable, torch.full_like(largest, LARGEST_SCALE).div(largest), 0.0)
    groups = tuple(
        tuple(quantize_weight(group, *best, scales, inverse) for group, best in zip(part, bests, strict=True))
        for part, bests in zip(parts, found, strict=True)
    )
    return Int4Linear(groups, scales.masked_fill(~is_finite, torch.nan), num_outputs, num_inputs)


def ranges(group: Tensor) -> Tensor:
    """f32 [N]: what lies between the lowest and the highest of each row, zero included."""
    return group.amax(1).clamp(min=0.0) - group.amin(1).clamp(max=0.0)


def best_scale(group: Tensor) -> tuple[Tensor, Tensor]:
    """Weights [N, ≤ 32] → scales and zeros f32 [N] with the least squared error: zeros around the one that the range
    asks for, scales that cut off some of the range. 0 for a group of zeros; anything where a weight is not finite."""
    lowest, highest = group.amin(1).clamp(max=0.0), group.amax(1).clamp(min=0.0)
    middle = (-lowest / ((highest - lowest) / LARGEST)).round()
    scales, zeros, errors = torch.zeros_like(lowest), torch.zeros_like(lowest), torch.zeros_like(lowest)
    for step in (-1.0, 0.0, 1.0):
        zero = (middle + step).clamp(0.0, LARGEST)
        rest = LARGEST - zero
        is_possible = ((zero > 0) | (lowest == 0)) & ((rest > 0) | (highest == 0)) & (highest > lowest)
        whole_range = torch.maximum(highest / rest.clamp(min=1.0), -lowest / zero.clamp(min=1.0))
        for share in SHARES:
            scale = whole_range * share
            error = squared_error(group, scale, zero)
            is_better = is_possible & ((scales == 0) | (error < errors))
            scales, zeros = torch.where(is_better, scale, scales), torch.where(is_better, zero, zeros)
            errors = torch.where(is_better, error, errors)
    return scales, zeros


def to_whole(group: Tensor, inverse: Tensor, zeros: Tensor) -> Tensor:
    """Weights in units of their scales, to the nearest whole numbers that four bits can say, zero subtracted."""
    zeros = zeros[:, None]
    return torch.minimum(torch.maximum((group * inverse[:, None]).round(), -zeros), LARGEST - zeros)


def squared_error(group: Tensor, scales: Tensor, zeros: Tensor) -> Tensor:
    """f32 [N]; summed in halves upon halves of 32, for the same bits on every backend."""
    whole = to_whole(group, torch.ones_like(scales).div(scales), zeros)
    squares = group.new_zeros(len(group), GROUP_SIZE)
    squares[:, : group.shape[1]] = (whole * scales[:, None] - group).square()
    while squares.shape[1] > 1:
        first, second = squares.chunk(2, dim=1)
        squares = first + second
    return squares.squeeze(1)


def quantize_weight(group: Tensor, scales: Tensor, zeros: Tensor, outputs: Tensor, inverse: Tensor) -> Int4Group:
    """Weights [N, ≤ 32] by their group's ``scales`` and ``zeros``. ``outputs`` f32 [N]: scales of outputs; ``inverse``:
    one over them, or 0 where all are zeros."""
    in_units = (scales * inverse).round().nan_to_num(0.0)
    to_values = torch.where(in_units > 0, torch.ones_like(outputs).div(in_units * outputs), 0.0)
    values = to_whole(group.masked_fill((in_units == 0)[:, None], 0.0), to_values, zeros)
    return Int4Group(pad_panel(values), in_units)


def linear(x: Tensor, weight: Int4Linear, bias: Tensor | None) -> Tensor:
    """x [T, K] float32 or bfloat16 → float32 [T, N]."""
    sums = []
    for part, groups in zip(x.to(torch.float32).chunk(len(weight.groups), dim=1), weight.groups, strict=True):
        total: Tensor | None = None
        for inputs, group in zip(torch.split(part, GROUP_SIZE, dim=1), groups, strict=True):
            values, scales = quantize(inputs, INT8)
            product = multiply(values, group.values)[: len(x), : weight.num_outputs].mul(group.scales).mul(scales)
            total = product if total is None else total.add_(product)
        assert total is not None
        sums.append(total)
    result = add_in_tree(sums).mul(weight.scales)
    return result if bias is None else result.add_(bias)
