"""The weights of linear layers, as they are given or quantized. Knows no kernel: torch packs on the weight's device."""

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from kernels.ops import Quantization

MOST_SEGMENTS = 32
SMALLEST = 1e-30  # an output with nothing larger counts as zeros
CHUNK_NUMBERS = 1 << 24


@dataclass(frozen=True, slots=True)
class Scaling:
    """How weights and inputs become numbers of 8 bits: ``largest`` is what the largest of those that share a scale
    becomes; a scale of inputs is for ``group_size`` of them."""

    dtype: torch.dtype
    largest: float
    group_size: int


SCALINGS: dict[Quantization, Scaling] = {
    "int8": Scaling(torch.int8, 127.0, 64),
    "fp8": Scaling(torch.float8_e4m3fn, 448.0, 128),
}


@dataclass(frozen=True, slots=True)
class TritonLinear:
    """``data`` [N, S · padded K / S], rows as in the weight; quantized: each segment padded with zeros to whole groups,
    and ``scales`` f32 [N]. ``dtype``: of the weight given."""

    data: Tensor
    scales: Tensor | None
    num_outputs: int
    num_inputs: int
    segments: int
    dtype: torch.dtype
    scaling: Scaling | None
    layout_id: str


def pack_linear(weight: Tensor, segments: int, *, is_gated: bool, quantization: Quantization | None) -> TritonLinear:
    """[N, K] float32 or bfloat16; not quantized, a contiguous weight is kept, not copied. ``is_gated``: gate rows come
    first, and stay so. ValueError: another dtype, segments that do not divide K, an odd gated weight."""
    if weight.dtype not in (torch.float32, torch.bfloat16):
        raise ValueError(f"a linear weight is float32 or bfloat16, not {weight.dtype}")
    num_outputs, num_inputs = weight.shape
    if not 1 <= segments <= MOST_SEGMENTS:
        raise ValueError(f"a linear layer has 1 to {MOST_SEGMENTS} segments, not {segments}")
    if num_inputs % segments:
        raise ValueError(f"{segments} segments do not divide {num_inputs} inputs")
    if is_gated and num_outputs % 2:
        raise ValueError(f"gate and up are equally wide, so together not {num_outputs}")
    data, scales, scaling = weight, None, None
    if quantization is None:
        data = weight.contiguous()
    else:
        scaling = SCALINGS[quantization]
        data, scales = quantize(weight, segments, scaling)
    layout_id = f"rows-{quantization or str(weight.dtype).removeprefix('torch.')}-s{segments}"
    return TritonLinear(data, scales, num_outputs, num_inputs, segments, weight.dtype, scaling, layout_id)


def quantize(weight: Tensor, segments: int, scaling: Scaling) -> tuple[Tensor, Tensor]:
    """(numbers [N, S · padded K / S], scales f32 [N]), some rows at a time to need little memory beside."""
    num_outputs, num_inputs = weight.shape
    size = num_inputs // segments
    padded = triton.cdiv(size, scaling.group_size) * scaling.group_size
    data = torch.empty(num_outputs, segments, padded, dtype=scaling.dtype, device=weight.device)
    scales = torch.empty(num_outputs, dtype=torch.float32, device=weight.device)
    if padded > size:
        data.view(torch.uint8)[:, :, size:] = 0
    step = max(CHUNK_NUMBERS // num_inputs, 1)
    for start in range(0, num_outputs, step):
        chunk = slice(start, start + step)
        values, scales[chunk] = quantize_rows(weight[chunk].to(torch.float32), scaling)
        data[chunk, :, :size] = values.view(-1, segments, size)
    return data.view(num_outputs, segments * padded), scales


def quantize_rows(rows: Tensor, scaling: Scaling) -> tuple[Tensor, Tensor]:
    """Numbers in the scaling's dtype, and the scale f32 of each row: max|x| / largest; 0 where that is nothing, NaN for
    a row with NaN or infinity."""
    most = rows.abs().amax(dim=1)
    # A division by a Python number is a product with its rounded inverse on a GPU.
    largest = torch.full_like(most, scaling.largest)
    is_usable = most.isfinite() & (most > SMALLEST)
    inverse = (largest / most).masked_fill_(~is_usable, 0.0)
    scales = (most / largest).masked_fill_(~is_usable, 0.0).masked_fill_(~most.isfinite(), torch.nan)
    values = (rows * inverse[:, None]).nan_to_num_(0.0)
    return (values.round_() if scaling.dtype == torch.int8 else values).to(scaling.dtype), scales
