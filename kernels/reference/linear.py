"""Linear layers: fixed tiles of 16 rows, padded weights, segments of K summed alone (design 7.2).

What a matrix product does to a row depends on the number of rows and, for sizes that are no multiple of the vector
width, on the row's place. So every product here is [16, K] x [K, N] with K and N padded to multiples of 16, and
packing checks that equal rows give equal results.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.ops import PackedLinear

ROWS = 16
LANES = 16


def round_up(size: int, multiple: int) -> int:
    """The smallest multiple of ``multiple`` that is at least ``size``."""
    return -(-size // multiple) * multiple


@dataclass(slots=True)
class ReferenceLinear:
    """``panels``: a segment of K each, float32 [padded N, padded K / S], zeros in the padding."""

    panels: tuple[Tensor, ...]
    num_outputs: int
    num_inputs: int
    dtype: torch.dtype
    layout_id: str = "ref-f32"


def pack_linear(weight: Tensor, segments: int) -> ReferenceLinear:
    """Pack [N, K] float32 or bfloat16 as float32. ValueError: another dtype, or segments that do not divide K."""
    num_outputs, num_inputs = check_weight(weight, segments)
    panels = tuple(pad_panel(part) for part in weight.chunk(segments, dim=1))
    for panel in panels:
        check_rows_agree(panel)
    return ReferenceLinear(panels, num_outputs, num_inputs, weight.dtype)


def check_weight(weight: Tensor, segments: int) -> tuple[int, int]:
    """(N, K) of a weight that can be packed. ValueError: another dtype than float32 or bfloat16, or segments that do
    not divide K."""
    if weight.dtype not in (torch.float32, torch.bfloat16):
        raise ValueError(f"a linear weight is float32 or bfloat16, not {weight.dtype}")
    num_outputs, num_inputs = weight.shape
    if segments < 1 or num_inputs % segments:
        raise ValueError(f"{segments} segments do not divide {num_inputs} inputs")
    return num_outputs, num_inputs


def pad_panel(part: Tensor) -> Tensor:
    """A freshly allocated (so aligned) float32 copy with both sizes padded to multiples of 16."""
    num_outputs, num_inputs = part.shape
    panel = part.new_zeros(round_up(num_outputs, LANES), round_up(num_inputs, LANES), dtype=torch.float32)
    panel[:num_outputs, :num_inputs] = part
    return panel


def check_rows_agree(panel: Tensor) -> None:
    """Raises RuntimeError where this torch's matrix product depends on a row's place in the tile."""
    row = panel[:1] if bool(panel[0].isfinite().all()) else torch.ones_like(panel[:1])
    result = torch.mm(row.expand(ROWS, -1).contiguous(), panel.t())
    if not torch.equal(result.nan_to_num(), result[:1].nan_to_num().expand(ROWS, -1)):
        raise RuntimeError(
            f"this build's matrix product depends on a row's place, for a weight of {tuple(panel.shape)}"
        )


def linear(x: Tensor, weight: PackedLinear, bias: Tensor | None) -> Tensor:
    """x [T, K] in the weight's dtype → float32 [T, N]. TypeError: another backend's weight or another dtype."""
    if not isinstance(weight, ReferenceLinear):
        raise TypeError(f"a weight packed as {weight.layout_id} is not this backend's")
    if x.dtype != weight.dtype:
        raise TypeError(f"input is {x.dtype}, the weight {weight.dtype}")
    parts = x.chunk(len(weight.panels), dim=1)
    result = add_in_tree([multiply(part, panel) for part, panel in zip(parts, weight.panels, strict=True)])
    result = result[: x.shape[0], : weight.num_outputs]
    return result.contiguous() if bias is None else result + bias


def multiply(x: Tensor, panel: Tensor) -> Tensor:
    """x [T, K] times a panel → float32 [padded T, padded N], tile by tile."""
    num_rows, num_inputs = x.shape
    padded = x.new_zeros(round_up(num_rows, ROWS), panel.shape[1], dtype=torch.float32)
    padded[:num_rows, :num_inputs] = x
    result = padded.new_empty(padded.shape[0], panel.shape[0])
    for start in range(0, padded.shape[0], ROWS):
        torch.mm(padded[start : start + ROWS], panel.t(), out=result[start : start + ROWS])
    return result


def add_in_tree(parts: list[Tensor]) -> Tensor:
    """The sum of the parts: neighbours in pairs, level by level; an odd one at the end goes up unchanged."""
    while len(parts) > 1:
        pairs = [first + second for first, second in zip(parts[::2], parts[1::2], strict=False)]
        parts = pairs + parts[2 * len(pairs) :]
    return parts[0]
