"""Linear layers: which kernel multiplies what, and what comes after it. The order of additions is in design 7.2, 7.3.

A library multiplies many rows by a weight that is not quantized, unless every row must have bits of its own.
"""

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from kernels.ops import PackedLinear
from kernels.triton.jit.linear import linear_kernel
from kernels.triton.jit.linear_epilogue import finish_kernel
from kernels.triton.jit.linear_inputs import quantize_inputs_kernel
from kernels.triton.launch import launch
from kernels.triton.linear_packing import Scaling, TritonLinear, pack_linear
from kernels.triton.linear_tiles import Tile, choose_tile, find_tiles
from kernels.triton.target import Target

__all__ = ["TritonLinear", "gated_linear", "linear", "pack_linear"]

TILES_AT_ONCE = 8
FINISHED_OUTPUTS = 512
MOST_SEGMENTED_ROWS = 2048  # at once: their sums wait in memory, some for each row
QUANTIZED_INPUTS = 2048
MOST_GROUPS_PER_STEP = 4


@dataclass(frozen=True, slots=True)
class Epilogue:
    """What becomes of the sums: + ``bias`` f32 [N], then + ``residual`` f32 [T, N], or silu(gate) · up."""

    bias: Tensor | None
    residual: Tensor | None = None
    is_gated: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether the sums are the result."""
        return self.bias is None and self.residual is None and not self.is_gated


def linear(
    target: Target, x: Tensor, weight: PackedLinear, bias: Tensor | None, residual: Tensor | None = None
) -> Tensor:
    """x [T, K] → float32 [T, N]. TypeError: another backend's weight or another dtype than its own."""
    packed = check(x, weight)
    out = torch.empty(len(x), packed.num_outputs, dtype=torch.float32, device=x.device)
    residual = None if residual is None else residual.contiguous()
    return multiply(target, x, packed, Epilogue(bias, residual), out)


def gated_linear(target: Target, x: Tensor, weight: PackedLinear, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """x [T, K] → silu(gate) · up in ``dtype`` [T, N / 2]. TypeError as ``linear``."""
    packed = check(x, weight)
    out = torch.empty(len(x), packed.num_outputs // 2, dtype=dtype, device=x.device)
    return multiply(target, x, packed, Epilogue(bias, is_gated=True), out)


def check(x: Tensor, weight: PackedLinear) -> TritonLinear:
    """The weight, if it is ours and x has a dtype that it takes."""
    if not isinstance(weight, TritonLinear):
        raise TypeError(f"a weight packed as {weight.layout_id} is not this backend's")
    if weight.scaling is None and x.dtype != weight.dtype:
        raise TypeError(f"input is {x.dtype}, the weight {weight.dtype}")
    return weight


def multiply(target: Target, x: Tensor, weight: TritonLinear, epilogue: Epilogue, out: Tensor) -> Tensor:
    """Fill ``out`` with what the epilogue makes of x · weightᵀ, or return a tensor that is it."""
    num_rows = len(x)
    tiles = find_tiles(target)
    is_library = weight.scaling is None and not target.batch_invariant
    if is_library and num_rows > tiles.own_rows:
        return finish(multiply_by_library(x, weight.data).unsqueeze(0), None, epilogue, out)
    segments = 1 if is_library else weight.segments
    if segments == 1:
        return launch_linear(target, x, weight, epilogue, out, segments=1)
    if num_rows <= tiles.split_rows:
        sums = torch.empty(segments, num_rows, weight.num_outputs, dtype=torch.float32, device=x.device)
        launch_linear(target, x, weight, Epilogue(None), sums, segments=segments, is_split=True)
        return finish(sums, weight.scales, epilogue, out)
    for start in range(0, num_rows, MOST_SEGMENTED_ROWS):
        rows = slice(start, start + MOST_SEGMENTED_ROWS)
        residual = None if epilogue.residual is None else epilogue.residual[rows]
        if epilogue.is_gated:
            shape = (len(x[rows]), weight.num_outputs)
            sums = torch.empty(shape, dtype=torch.float32, device=x.device)
            launch_linear(target, x[rows], weight, Epilogue(epilogue.bias), sums, segments=segments)
            finish(sums.unsqueeze(0), None, Epilogue(None, is_gated=True), out[rows])
        else:
            launch_linear(target, x[rows], weight, Epilogue(epilogue.bias, residual), out[rows], segments=segments)
    return out


def multiply_by_library(x: Tensor, weight: Tensor) -> Tensor:
    """f32 [T, N], in whatever order."""
    if x.is_cpu:  # where torch has no such product of bfloat16
        return torch.mm(x.to(torch.float32), weight.to(torch.float32).t())
    if x.dtype == torch.float32:
        return torch.mm(x, weight.t())
    return torch.mm(x, weight.t(), out_dtype=torch.float32)


def launch_linear(
    target: Target,
    x: Tensor,
    weight: TritonLinear,
    epilogue: Epilogue,
    out: Tensor,
    *,
    segments: int,
    is_split: bool = False,
) -> Tensor:
    """Fill ``out``: [T, N or half of that], or [segments, T, N] if each sum goes there alone."""
    num_rows, num_outputs = len(x), weight.num_outputs
    size = weight.data.shape[1] // segments
    scaling = weight.scaling
    input_scales: Tensor | None = None
    if scaling is None:
        x = x.contiguous()
    else:
        x, input_scales = quantize_inputs(x, weight.segments, scaling)
    levels = 0 if is_split else (segments - 1).bit_length()
    tile = find_tile(target, weight, epilogue, num_rows, segments if is_split else 1, size, levels > 0)
    num_tiles = triton.cdiv(out.shape[-1], tile.outputs) * triton.cdiv(num_rows, tile.rows)
    waiting: Tensor | None = None
    if levels:
        waiting = torch.empty(num_tiles, levels, tile.outputs, tile.rows, dtype=torch.float32, device=x.device)
    launch(
        linear_kernel,
        (num_tiles, segments if is_split else 1),
        weight.data,
        x,
        input_scales,
        None if is_split else weight.scales,
        epilogue.bias,
        epilogue.residual,
        waiting,
        out,
        num_rows,
        NUM_OUTPUTS=num_outputs,
        SEGMENTS=segments,
        SIZE=size,
        LEVELS=levels,
        IS_SPLIT=is_split,
        IS_GATED=epilogue.is_gated,
        GROUP_SIZE=0 if scaling is None else scaling.group_size,
        GROUPS_PER_STEP=1 if scaling is None else groups_per_step(size // scaling.group_size, tile, scaling),
        BLOCK_OUTPUTS=tile.outputs,
        BLOCK_ROWS=tile.rows,
        BLOCK_INPUTS=tile.inputs,
        TILES_AT_ONCE=TILES_AT_ONCE,
        POLICY="evict_first" if num_rows <= tile.rows else "",
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )
    return out


def find_tile(
    target: Target,
    weight: TritonLinear,
    epilogue: Epilogue,
    num_rows: int,
    num_parts: int,
    size: int,
    has_waiting: bool,
) -> Tile:
    """The tile of a launch. Only exact sums, or sums without a promise, may be cut as suits their number."""
    tiles, scaling = find_tiles(target), weight.scaling
    if scaling is None:
        kinds = tiles.bfloat16 if weight.dtype == torch.bfloat16 else tiles.float32
        may_narrow = not target.batch_invariant
    else:
        kinds = tiles.int8 if scaling.dtype == torch.int8 else tiles.fp8
        may_narrow = scaling.dtype == torch.int8
    return choose_tile(
        target,
        kinds,
        num_rows=num_rows,
        num_outputs=weight.num_outputs,
        num_parts=num_parts,
        num_inputs=size,
        may_narrow=may_narrow,
        bytes_per_number=weight.data.element_size(),
        num_weights=2 if epilogue.is_gated else 1,
        has_waiting=has_waiting,
    )


def groups_per_step(num_groups: int, tile: Tile, scaling: Scaling) -> int:
    """How many groups of a segment a step takes: as many as the tile's inputs, of those that come out even."""
    most = min(tile.inputs // scaling.group_size, MOST_GROUPS_PER_STEP)
    return max(count for count in range(1, max(most, 1) + 1) if num_groups % count == 0)


def quantize_inputs(x: Tensor, segments: int, scaling: Scaling) -> tuple[Tensor, Tensor]:
    """(numbers [T, S · padded K / S], scales f32 [groups, T]) of x [T, K] float32 or bfloat16."""
    if x.stride(1) != 1:
        x = x.contiguous()
    num_rows, size = len(x), x.shape[1] // segments
    num_groups = triton.cdiv(size, scaling.group_size)
    all_groups = segments * num_groups
    values = torch.empty(num_rows, all_groups * scaling.group_size, dtype=scaling.dtype, device=x.device)
    scales = torch.empty(all_groups, num_rows, dtype=torch.float32, device=x.device)
    block = min(QUANTIZED_INPUTS // scaling.group_size, triton.next_power_of_2(all_groups))
    launch(
        quantize_inputs_kernel,
        (num_rows, triton.cdiv(all_groups, block)),
        x,
        values,
        scales,
        num_rows,
        x.stride(0),
        SEGMENTS=segments,
        SIZE=size,
        GROUP_SIZE=scaling.group_size,
        NUM_GROUPS=num_groups,
        BLOCK_GROUPS=block,
        num_warps=4,
    )
    return values, scales


def finish(sums: Tensor, scales: Tensor | None, epilogue: Epilogue, out: Tensor) -> Tensor:
    """The tree of ``sums`` f32 [S, T, N], times the scales, and the epilogue, in ``out``; or the one sum as it is."""
    num_sums, num_rows, num_outputs = sums.shape
    if num_sums == 1 and scales is None and epilogue.is_empty:
        return sums[0]
    launch(
        finish_kernel,
        (num_rows, triton.cdiv(out.shape[1], FINISHED_OUTPUTS)),
        sums,
        scales,
        epilogue.bias,
        epilogue.residual,
        out,
        num_rows,
        NUM_OUTPUTS=num_outputs,
        NUM_SUMS=num_sums,
        IS_GATED=epilogue.is_gated,
        BLOCK=FINISHED_OUTPUTS,
        num_warps=4,
    )
    return out
