"""Linear layers with weights and inputs of eight bits, whole numbers or e4m3, and scales (design 7.3).

Products of a group of int8 fit in 24 bits, so float32 sums them exactly in whatever order; then groups are scaled and
added in order, segments in their tree: the bits do not depend on the matrix product's own order. Products of e4m3 are
exact too, but their sums round, so a group's depends on that order, as without quantization.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.reference.linear import add_in_tree, check_weight, multiply, pad_panel

SMALLEST = 1e-30  # a row with nothing larger counts as zeros: the inverse of its scale would not be finite


@dataclass(frozen=True, slots=True)
class Numbers:
    """``group_size``: inputs with a scale of their own. ``largest``: what a row's largest becomes. ``nearest``: to the
    nearest number that there is, ties to even, of float32 and as such."""

    layout_id: str
    group_size: int
    largest: float
    nearest: Callable[[Tensor], Tensor]


def nearest_e4m3(values: Tensor) -> Tensor:
    """float32 of magnitude up to 448 → float32."""
    return values.to(torch.float8_e4m3fn).to(torch.float32)


INT8 = Numbers("ref-int8", 64, 127.0, torch.round)
FP8 = Numbers("ref-fp8", 128, 448.0, nearest_e4m3)


@dataclass(slots=True)
class ScaledLinear:
    """``groups[segment][group]``: numbers as float32 [padded N, padded group]; ``scales`` f32 [N]."""

    numbers: Numbers
    groups: tuple[tuple[Tensor, ...], ...]
    scales: Tensor
    num_outputs: int
    num_inputs: int

    @property
    def layout_id(self) -> str:
        """As its numbers'."""
        return self.numbers.layout_id


def pack_linear(weight: Tensor, segments: int, numbers: Numbers) -> ScaledLinear:
    """Quantize [N, K]. ValueError: another dtype than float32 or bfloat16, or segments that do not divide K."""
    num_outputs, num_inputs = check_weight(weight, segments)
    values, scales = quantize(weight.to(torch.float32), numbers)
    parts = [torch.split(part, numbers.group_size, dim=1) for part in values.chunk(segments, dim=1)]
    groups = tuple(tuple(pad_panel(group) for group in part) for part in parts)
    return ScaledLinear(numbers, groups, scales.squeeze(1), num_outputs, num_inputs)


def quantize(rows: Tensor, numbers: Numbers) -> tuple[Tensor, Tensor]:
    """Numbers as float32, and the scale f32 [n, 1] of each row: max|x| / largest, 0 where that is nothing.

    x · (largest / max|x|), rounded to nearest even. A row with NaN or infinity has the scale NaN.
    """
    most = rows.abs().amax(dim=1, keepdim=True)
    inverse = torch.full_like(most, numbers.largest).div_(most)
    is_usable = most.isfinite() & (most > SMALLEST)
    scales = torch.where(is_usable, most / numbers.largest, 0.0).masked_fill_(~most.isfinite(), torch.nan)
    return numbers.nearest((rows * inverse.masked_fill(~is_usable, 0.0)).nan_to_num_(0.0)), scales


def linear(x: Tensor, weight: ScaledLinear, bias: Tensor | None) -> Tensor:
    """x [T, K] float32 or bfloat16 → float32 [T, N]."""
    num_rows, numbers = x.shape[0], weight.numbers
    sums = []
    for part, panels in zip(x.to(torch.float32).chunk(len(weight.groups), dim=1), weight.groups, strict=True):
        total: Tensor | None = None
        for group, panel in zip(torch.split(part, numbers.group_size, dim=1), panels, strict=True):
            values, scales = quantize(group, numbers)
            product = multiply(values, panel)[:num_rows, : weight.num_outputs].mul(scales)
            total = product if total is None else total.add_(product)
        assert total is not None
        sums.append(total)
    result = add_in_tree(sums).mul(weight.scales)
    return result if bias is None else result.add_(bias)
