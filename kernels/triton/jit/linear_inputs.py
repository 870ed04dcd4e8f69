"""Inputs of quantized linears: each row in groups along K, each group with a scale."""

import triton
import triton.language as tl

from kernels.triton.jit.arithmetic import round_to_even
from kernels.triton.jit.rounding import round_to

INT8_LARGEST: tl.constexpr = tl.constexpr(127.0)
E4M3_LARGEST: tl.constexpr = tl.constexpr(448.0)
SMALLEST: tl.constexpr = tl.constexpr(1e-30)  # a group with nothing larger counts as zeros


@triton.jit(do_not_specialize=["num_rows", "stride"])
def quantize_inputs_kernel(
    x,  # float [num_rows, NUM_INPUTS], rows ``stride`` apart
    values,  # int8 or e4m3 [num_rows, groups · GROUP_SIZE]; zeros in a segment's padding
    scales,  # f32 [groups, num_rows]
    num_rows,
    stride,
    SEGMENTS: tl.constexpr,
    SIZE: tl.constexpr,  # inputs of a segment
    GROUP_SIZE: tl.constexpr,
    NUM_GROUPS: tl.constexpr,  # of a segment
    BLOCK_GROUPS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    groups = tl.program_id(1) * BLOCK_GROUPS + tl.arange(0, BLOCK_GROUPS)
    lanes = tl.arange(0, GROUP_SIZE)[None, :]
    is_group = groups < SEGMENTS * NUM_GROUPS
    inputs = (groups % NUM_GROUPS)[:, None] * GROUP_SIZE + lanes
    mask = is_group[:, None] & (inputs < SIZE)
    given = tl.load(x + row * stride + (groups // NUM_GROUPS)[:, None] * SIZE + inputs, mask=mask, other=0.0)
    given = given.to(tl.float32)
    is_finite = tl.abs(given) < float("inf")
    most = tl.max(tl.where(is_finite, tl.abs(given), 0.0), axis=1)
    all_finite = tl.min(is_finite.to(tl.int32), axis=1) == 1
    is_usable = all_finite & (most > SMALLEST)
    divisor = tl.where(is_usable, most, 1.0)
    largest = INT8_LARGEST if values.dtype.element_ty == tl.int8 else E4M3_LARGEST
    inverse = tl.div_rn(tl.zeros_like(divisor) + largest, divisor)
    scale = tl.where(is_usable, tl.div_rn(divisor, tl.zeros_like(divisor) + largest), 0.0)
    scale = tl.where(all_finite, scale, float("nan"))
    scaled = tl.where(is_usable[:, None], given * inverse[:, None], 0.0)
    if values.dtype.element_ty == tl.int8:
        scaled = round_to_even(scaled)
    result = round_to(scaled, values.dtype.element_ty)
    padded = row * (SEGMENTS * NUM_GROUPS * GROUP_SIZE) + groups[:, None] * GROUP_SIZE + lanes
    tl.store(values + padded, result, mask=is_group[:, None])
    tl.store(scales + groups.to(tl.int64) * num_rows + row, scale, mask=is_group)
