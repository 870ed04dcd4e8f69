"""What is done with a finished sum: the scale of quantized weights, bias, residual or SiLU, in the order of the parts
one after the other; and the kernel that does it to sums made elsewhere."""

import triton
import triton.language as tl

from kernels.triton.jit.layers import silu_and_mul
from kernels.triton.jit.linear_tree import settle
from kernels.triton.jit.rounding import round_to


@triton.jit
def add_bias(value, scales, bias, outputs, mask):
    """value · scale + bias of ``outputs``; either pointer may be None."""
    if scales is not None:
        value = value * tl.load(scales + outputs, mask=mask, other=0.0)
    if bias is not None:
        value = value + tl.load(bias + outputs, mask=mask, other=0.0)
    return value


@triton.jit
def sum_in_tree(sums, slab, mask, NUM_SUMS: tl.constexpr):
    """The sums at ``sums`` + i · ``slab``, added in the tree; at most 32."""
    value = tl.load(sums, mask=mask, other=0.0)
    at_0, at_1, at_2, at_3, at_4 = value, value, value, value, value
    for index in tl.static_range(NUM_SUMS):
        value = tl.load(sums + index * slab, mask=mask, other=0.0)
        value, at_0 = settle(value, at_0, index, 0, NUM_SUMS - 1)
        value, at_1 = settle(value, at_1, index, 1, NUM_SUMS - 1)
        value, at_2 = settle(value, at_2, index, 2, NUM_SUMS - 1)
        value, at_3 = settle(value, at_3, index, 3, NUM_SUMS - 1)
        value, at_4 = settle(value, at_4, index, 4, NUM_SUMS - 1)
    return value


@triton.jit(do_not_specialize=["num_rows"])
def finish_kernel(
    sums,  # f32 [NUM_SUMS, num_rows, NUM_OUTPUTS]
    scales,  # f32 [NUM_OUTPUTS] or None
    bias,  # f32 [NUM_OUTPUTS] or None
    residual,  # f32 [num_rows, NUM_OUTPUTS] or None
    out,  # [num_rows, NUM_OUTPUTS], or half as wide of a gated weight
    num_rows,
    NUM_OUTPUTS: tl.constexpr,
    NUM_SUMS: tl.constexpr,
    IS_GATED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    WIDTH: tl.constexpr = NUM_OUTPUTS // 2 if IS_GATED else NUM_OUTPUTS
    mask = columns < WIDTH
    slab = num_rows.to(tl.int64) * NUM_OUTPUTS
    source = sums + row * NUM_OUTPUTS + columns
    value = add_bias(sum_in_tree(source, slab, mask, NUM_SUMS), scales, bias, columns, mask)
    if IS_GATED:
        up = sum_in_tree(source + WIDTH, slab, mask, NUM_SUMS)
        value = silu_and_mul(value, add_bias(up, scales, bias, columns + WIDTH, mask))
    elif residual is not None:
        value = value + tl.load(residual + row * WIDTH + columns, mask=mask, other=0.0)
    tl.store(out + row * WIDTH + columns, round_to(value, out.dtype.element_ty), mask=mask)
