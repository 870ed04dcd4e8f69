"""The small per-row operations of a layer: embedding, norms, activation, rotary positions. All arithmetic is float32.

A norm's sum of squares is made in whole numbers, in which any order gives the same sum: its bits follow the row alone,
not the layout that the compiler chooses by a kernel's shape and by the alignment of what it reads.
"""

import triton
import triton.language as tl

from kernels.triton.jit.arithmetic import exp_nonpositive
from kernels.triton.jit.rounding import round_to

INFINITY_BITS: tl.constexpr = tl.constexpr(0x7F800000)
MAGNITUDE_BITS: tl.constexpr = tl.constexpr(0x7FFFFFFF)
ONE_IN_SUM: tl.constexpr = tl.constexpr(float(2**44))
SMALLEST_EXPONENT: tl.constexpr = tl.constexpr(16)
LARGEST_EXPONENT: tl.constexpr = tl.constexpr(252)


@triton.jit
def largest_bits(x):
    """The bits of the largest magnitude of each row of x f32 [R, N], i32 [R]. From ``INFINITY_BITS`` on one of its
    numbers is not finite: as whole numbers NaN are the largest."""
    return tl.max(x.to(tl.int32, bitcast=True) & MAGNITUDE_BITS, axis=1)


@triton.jit
def root_mean_square(x, size, eps):
    """sqrt(mean(x²) + eps) of each row of x f32 [R, N], 0 where there is no number; NaN where one is not finite."""
    bits = largest_bits(x)
    is_finite = bits < INFINITY_BITS
    exponent = tl.minimum(tl.maximum(bits >> 23, SMALLEST_EXPONENT), LARGEST_EXPONENT)
    # Powers of two: the numbers become less than 1 (in the last octaves less than 4) and the sum at least ¼.
    shrink = ((253 - exponent) << 23).to(tl.float32, bitcast=True)
    grow = ((exponent + 1) << 23).to(tl.float32, bitcast=True)
    small = tl.where(is_finite[:, None], x * shrink[:, None], 0.0)
    total = tl.sum((small * small * ONE_IN_SUM).to(tl.int64), axis=1)
    mean = tl.div_rn(total.to(tl.float32), size) * (1.0 / ONE_IN_SUM) * grow * grow
    return tl.sqrt_rn(tl.where(is_finite, mean, float("nan")) + eps)


@triton.jit
def rotate(x, partner, cos, sin, columns, ROTATED: tl.constexpr):
    """The half-split rotation of heads x [R, N]; ``partner``: of each number the one it turns with."""
    half: tl.constexpr = ROTATED // 2
    by_cos, by_sin = x * cos[None, :], partner * sin[None, :]
    turned = tl.where(columns[None, :] < half, by_cos - by_sin, by_cos + by_sin)
    return tl.where(columns[None, :] < ROTATED, turned, x)


@triton.jit
def partner_columns(columns, ROTATED: tl.constexpr):
    """Where the number lies that each one turns with."""
    half: tl.constexpr = ROTATED // 2
    return tl.where(columns < half, columns + half, tl.where(columns < ROTATED, columns - half, columns))


@triton.jit
def load_turn(cos_sin, position, cos_sin_stride, columns, ROTATED: tl.constexpr):
    """Cosine and sine of each column of a head at ``position``."""
    half: tl.constexpr = ROTATED // 2
    turn = cos_sin + position * cos_sin_stride + tl.where(columns < half, columns, columns - half)
    mask = columns < ROTATED
    return tl.load(turn, mask, other=1.0), tl.load(turn + half, mask, other=0.0)


@triton.jit
def embed_kernel(ids, table, out, table_stride, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < SIZE
    x = tl.load(table + tl.load(ids + row) * table_stride + columns, mask)
    tl.store(out + row * SIZE + columns, x.to(tl.float32), mask)


@triton.jit(do_not_specialize=["num_rows"])
def rms_norm_kernel(
    x, weight, out, num_rows, num_heads, row_stride, head_stride, eps,
    SIZE: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """``num_rows`` counts heads, of which ``num_heads`` have the same first index."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK)
    mask = (rows < num_rows)[:, None] & (columns < SIZE)[None, :]
    starts = (rows // num_heads).to(tl.int64) * row_stride + rows % num_heads * head_stride
    numbers = tl.load(x + starts[:, None] + columns[None, :], mask, other=0.0)
    factors = tl.load(weight + columns, columns < SIZE, other=0.0)
    root = root_mean_square(numbers, SIZE * 1.0, eps)
    normed = tl.div_rn(numbers, root[:, None]) * factors[None, :]
    tl.store(out + rows[:, None].to(tl.int64) * SIZE + columns[None, :], round_to(normed, out.dtype.element_ty), mask)


@triton.jit
def silu_and_mul_kernel(gate_up, out, row_stride, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < SIZE
    start = gate_up + row * row_stride + columns
    gate, up = tl.load(start, mask, other=0.0), tl.load(start + SIZE, mask, other=0.0)
    result = silu_and_mul(gate, up)
    tl.store(out + row * SIZE + columns, round_to(result, out.dtype.element_ty), mask)


@triton.jit
def silu_and_mul(gate, up):
    """silu(gate) · up of float32. The sigmoid uses exp(−|gate|), which cannot overflow."""
    decay = exp_nonpositive(-tl.abs(gate))
    numerator = tl.where(gate < 0.0, decay, 1.0)
    return tl.div_rn(gate * numerator, decay + 1.0) * up


@triton.jit
def rotary_kernel(
    x, positions, cos_sin, out, row_stride, head_stride, cos_sin_stride,
    NUM_HEADS: tl.constexpr, SIZE: tl.constexpr, ROTATED: tl.constexpr, HEADS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    columns = tl.arange(0, BLOCK)
    mask = (heads < NUM_HEADS)[:, None] & (columns < SIZE)[None, :]
    starts = x + row * row_stride + heads[:, None] * head_stride
    numbers = tl.load(starts + columns[None, :], mask, other=0.0)
    partner = tl.load(starts + partner_columns(columns, ROTATED)[None, :], mask, other=0.0)
    cos, sin = load_turn(cos_sin, tl.load(positions + row), cos_sin_stride, columns, ROTATED)
    turned = rotate(numbers, partner, cos, sin, columns, ROTATED)
    to = out + (row * NUM_HEADS + heads[:, None]) * SIZE + columns[None, :]
    tl.store(to, round_to(turned, out.dtype.element_ty), mask)
