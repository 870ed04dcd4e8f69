"""Linear layers with weights and inputs in e4m3, eight bits of floating point.

Products of two such numbers are exact in float32; their sums round, so a group's depends on the matrix product's own
order, as without quantization.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.reference.linear import add_in_tree, check_weight, multiply, pad_panel
from kernels.reference.linear_int8 import SMALLEST

GROUP_SIZE = 128
LARGEST = 448.0


@dataclass(slots=True)
class Fp8Linear:
    """``groups[segment][group]``: e4m3 numbers as float32 [padded N, padded group]; ``scales`` f32 [N]."""

    groups: tuple[tuple[Tensor, ...], ...]
    scales: Tensor
    num_outputs: int
    num_inputs: int
    layout_id: str = "ref-fp8"


def pack_linear(weight: Tensor, segments: int) -> Fp8Linear:
    """Quantize [N, K]. ValueError: another dtype than float32 or bfloat16, or segments that do not divide K."""
    num_outputs, num_inputs = check_weight(weight, segments)
    values, scales = quantize(weight.to(torch.float32))
    parts = [torch.split(part, GROUP_SIZE, dim=1) for part in values.chunk(segments, dim=1)]
    groups = tuple(tuple(pad_panel(group) for group in part) for part in parts)
    return Fp8Linear(groups, scales.squeeze(1), num_outputs, num_inputs)


def quantize(rows: Tensor) -> tuple[Tensor, Tensor]:
    """e4m3 numbers as float32, and the scale f32 [n, 1] of each row: max|x| / 448, 0 where that is nothing.

    x · (448 / max|x|), rounded to nearest even. A row with NaN or infinity has the scale NaN.
    """
    most = rows.abs().amax(dim=1, keepdim=True)
    inverse = torch.full_like(most, LARGEST).div_(most)
    is_usable = most.isfinite() & (most > SMALLEST)
    scales = torch.where(is_usable, most / LARGEST, 0.0).masked_fill_(~most.isfinite(), torch.nan)
    values = (rows * inverse.masked_fill(~is_usable, 0.0)).nan_to_num_(0.0)
    return values.to(torch.float8_e4m3fn).to(torch.float32), scales


def linear(x: Tensor, weight: Fp8Linear, bias: Tensor | None) -> Tensor:
    """x [T, K] float32 or bfloat16 → float32 [T, N]."""
    num_rows = x.shape[0]
    sums = []
    for part, panels in zip(x.to(torch.float32).chunk(len(weight.groups), dim=1), weight.groups, strict=True):
        total: Tensor | None = None
        for group, panel in zip(torch.split(part, GROUP_SIZE, dim=1), panels, strict=True):
            values, scales = quantize(group)
            product = multiply(values, panel)[:num_rows, : weight.num_outputs].mul(scales)
            total = product if total is None else total.add_(product)
        assert total is not None
        sums.append(total)
    result = add_in_tree(sums).mul(weight.scales)
    return result if bias is None else result.add_(bias)
