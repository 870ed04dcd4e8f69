"""x · weightᵀ, a tile of the result a program, for every kind of weight.

The weight is the first operand of the matrix unit and the rows of x are the second: so a tile of few rows runs the same
instruction as one of many (wgmma from 64 outputs on), and an output's additions along K have one order for any number
of rows.
"""

import triton
import triton.language as tl

from kernels.triton.jit import arithmetic
from kernels.triton.jit.arithmetic import INTERPRETED
from kernels.triton.jit.layers import silu_and_mul
from kernels.triton.jit.linear_epilogue import add_bias
from kernels.triton.jit.linear_tree import settle_in_memory
from kernels.triton.jit.rounding import round_to


@triton.jit
def dot(a, b, total):
    """total + a · b, the same bits for a row wherever in the tile it lies: which the interpreter's float32 products do
    not promise, while float64 leaves nothing of their order."""
    if INTERPRETED:
        product = tl.dot(a.to(tl.float32).to(tl.float64), b.to(tl.float32).to(tl.float64), out_dtype=tl.float64)
        return total + product.to(tl.float32)
    return arithmetic.dot(a, b, total)


@triton.jit
def load_inputs(addresses, first, offsets, end, IS_EVEN: tl.constexpr, POLICY: tl.constexpr):
    """[BLOCK_OUTPUTS, BLOCK_INPUTS] of a weight from input ``first`` on; zeros from ``end`` on."""
    if IS_EVEN:
        return tl.load(addresses + first, eviction_policy=POLICY)
    return tl.load(addresses + first, mask=(first + offsets < end)[None, :], other=0.0, eviction_policy=POLICY)


@triton.jit
def load_rows(addresses, first, offsets, end, row_mask, IS_EVEN: tl.constexpr):
    """[BLOCK_ROWS, BLOCK_INPUTS] of x; zeros where there is no row: those are not fetched."""
    if IS_EVEN:
        return tl.load(addresses + first, mask=row_mask[:, None], other=0.0)
    return tl.load(addresses + first, mask=row_mask[:, None] & (first + offsets < end)[None, :], other=0.0)


@triton.jit
def sum_segment(
    weight_at,
    up_at,
    x_at,
    row_mask,
    start,
    SIZE: tl.constexpr,
    IS_GATED: tl.constexpr,
    BLOCK_OUTPUTS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_INPUTS: tl.constexpr,
    POLICY: tl.constexpr,
):
    """Products summed over inputs ``start`` … ``start`` + SIZE − 1, of the weight and, if gated, of its second half."""
    IS_EVEN: tl.constexpr = SIZE % BLOCK_INPUTS == 0
    offsets = tl.arange(0, BLOCK_INPUTS)
    end = start + SIZE
    total = tl.zeros((BLOCK_OUTPUTS, BLOCK_ROWS), tl.float32)
    up_total = total
    for first in range(start, end, BLOCK_INPUTS):
        rows = tl.trans(load_rows(x_at, first, offsets, end, row_mask, IS_EVEN))
        total = dot(load_inputs(weight_at, first, offsets, end, IS_EVEN, POLICY), rows, total)
        if IS_GATED:
            up_total = dot(load_inputs(up_at, first, offsets, end, IS_EVEN, POLICY), rows, up_total)
    return total, up_total


@triton.jit
def scaled_product(values, rows, scales, BLOCK_OUTPUTS: tl.constexpr, BLOCK_ROWS: tl.constexpr):
    """The product of one group of inputs, summed alone and exactly for int8, times the rows' scales."""
    if values.dtype == tl.int8:
        product = tl.dot(values, rows, out_dtype=tl.int32).to(tl.float32)
    else:
        product = dot(values, rows, tl.zeros((BLOCK_OUTPUTS, BLOCK_ROWS), tl.float32))
    return product * scales[None, :]


@triton.jit
def sum_scaled_segment(
    weight_at,
    up_at,
    x_at,
    scales_at,  # f32 [groups, num_rows] at the tile's rows
    num_rows,
    row_mask,
    segment,
    SIZE: tl.constexpr,
    IS_GATED: tl.constexpr,
    GROUP_SIZE: tl.constexpr,
    GROUPS_PER_STEP: tl.constexpr,
    BLOCK_OUTPUTS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    POLICY: tl.constexpr,
):
    """``sum_segment`` of quantized weight and inputs, group after group. SIZE is a multiple of a step's groups."""
    NUM_GROUPS: tl.constexpr = SIZE // GROUP_SIZE
    offsets = tl.arange(0, GROUP_SIZE)
    total = tl.zeros((BLOCK_OUTPUTS, BLOCK_ROWS), tl.float32)
    up_total = total
    for step in range(segment * NUM_GROUPS, (segment + 1) * NUM_GROUPS, GROUPS_PER_STEP):
        for index in tl.static_range(GROUPS_PER_STEP):
            group = step + index
            scales = tl.load(scales_at + group * num_rows, mask=row_mask, other=0.0)
            rows = tl.trans(load_rows(x_at, group * GROUP_SIZE, offsets, 0, row_mask, True))
            values = load_inputs(weight_at, group * GROUP_SIZE, offsets, 0, True, POLICY)
            total += scaled_product(values, rows, scales, BLOCK_OUTPUTS, BLOCK_ROWS)
            if IS_GATED:
                values = load_inputs(up_at, group * GROUP_SIZE, offsets, 0, True, POLICY)
                up_total += scaled_product(values, rows, scales, BLOCK_OUTPUTS, BLOCK_ROWS)
    return total, up_total


@triton.jit
def sum_any_segment(
    weight_at,
    up_at,
    x_at,
    input_scales,
    rows,
    num_rows,
    row_mask,
    segment,
    SIZE: tl.constexpr,
    IS_GATED: tl.constexpr,
    GROUP_SIZE: tl.constexpr,
    GROUPS_PER_STEP: tl.constexpr,
    BLOCK_OUTPUTS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_INPUTS: tl.constexpr,
    POLICY: tl.constexpr,
):
    """(sum, sum of the gated weight's second half) over a segment, of whatever kind of weight."""
    if GROUP_SIZE > 0:
        total, up_total = sum_scaled_segment(
            weight_at,
            up_at,
            x_at,
            input_scales + rows,
            num_rows,
            row_mask,
            segment,
            SIZE,
            IS_GATED,
            GROUP_SIZE,
            GROUPS_PER_STEP,
            BLOCK_OUTPUTS,
            BLOCK_ROWS,
            POLICY,
        )
    else:
        total, up_total = sum_segment(
            weight_at,
            up_at,
            x_at,
            row_mask,
            segment * SIZE,
            SIZE,
            IS_GATED,
            BLOCK_OUTPUTS,
            BLOCK_ROWS,
            BLOCK_INPUTS,
            POLICY,
        )
    return total, up_total


@triton.jit
def find_tile(num_rows, NUM_TILES: tl.constexpr, BLOCK_ROWS: tl.constexpr, TILES_AT_ONCE: tl.constexpr):
    """(tile of outputs, tile of rows) of a program: TILES_AT_ONCE tiles of outputs meet all rows before the next, so
    that what runs at the same time shares what it reads."""
    program = tl.program_id(0)
    num_row_tiles = tl.cdiv(num_rows, BLOCK_ROWS)
    band = program // (TILES_AT_ONCE * num_row_tiles)
    first = band * TILES_AT_ONCE
    size = tl.minimum(NUM_TILES - first, TILES_AT_ONCE)
    within = program % (TILES_AT_ONCE * num_row_tiles)
    return first + within % size, within // size


@triton.jit(do_not_specialize=["num_rows"])
def linear_kernel(
    weight,  # [NUM_OUTPUTS, SEGMENTS · SIZE]
    x,  # [num_rows, SEGMENTS · SIZE]
    input_scales,  # f32 [groups, num_rows] or None
    weight_scales,  # f32 [NUM_OUTPUTS] or None
    bias,  # f32 [NUM_OUTPUTS] or None
    residual,  # f32 [num_rows, NUM_OUTPUTS] or None
    waiting,  # f32 [programs, LEVELS, a tile]: sums of segments; None if each program sums one
    out,  # [num_rows, NUM_OUTPUTS], half as wide if gated; one for each segment if IS_SPLIT: sums that end elsewhere
    num_rows,
    NUM_OUTPUTS: tl.constexpr,
    SEGMENTS: tl.constexpr,
    SIZE: tl.constexpr,
    LEVELS: tl.constexpr,
    IS_SPLIT: tl.constexpr,
    IS_GATED: tl.constexpr,
    GROUP_SIZE: tl.constexpr,
    GROUPS_PER_STEP: tl.constexpr,
    BLOCK_OUTPUTS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_INPUTS: tl.constexpr,
    TILES_AT_ONCE: tl.constexpr,
    POLICY: tl.constexpr,
):
    WIDTH: tl.constexpr = NUM_OUTPUTS // 2 if IS_GATED else NUM_OUTPUTS
    NUM_INPUTS: tl.constexpr = SEGMENTS * SIZE
    tile, row_tile = find_tile(num_rows, tl.cdiv(WIDTH, BLOCK_OUTPUTS), BLOCK_ROWS, TILES_AT_ONCE)
    outputs = tile * BLOCK_OUTPUTS + tl.arange(0, BLOCK_OUTPUTS)
    rows = row_tile * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    row_mask = rows < num_rows
    inputs = tl.arange(0, GROUP_SIZE if GROUP_SIZE > 0 else BLOCK_INPUTS)
    # Lanes past the last output read that one again: their sums are dropped.
    found = tl.minimum(outputs, WIDTH - 1).to(tl.int64) * NUM_INPUTS
    weight_at = weight + found[:, None] + inputs[None, :]
    up_at = weight_at + tl.cast(WIDTH, tl.int64) * NUM_INPUTS
    x_at = x + rows.to(tl.int64)[:, None] * NUM_INPUTS + inputs[None, :]
    first_segment = tl.program_id(1)
    if LEVELS > 0:
        lane = tl.arange(0, BLOCK_OUTPUTS)[:, None] * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)[None, :]
        waiting_at = waiting + tl.program_id(0).to(tl.int64) * (LEVELS * BLOCK_OUTPUTS * BLOCK_ROWS) + lane
        total = tl.zeros((BLOCK_OUTPUTS, BLOCK_ROWS), tl.float32)
        for segment in range(SEGMENTS):
            total, _ = sum_any_segment(
                weight_at,
                up_at,
                x_at,
                input_scales,
                rows,
                num_rows,
                row_mask,
                segment,
                SIZE,
                IS_GATED,
                GROUP_SIZE,
                GROUPS_PER_STEP,
                BLOCK_OUTPUTS,
                BLOCK_ROWS,
                BLOCK_INPUTS,
                POLICY,
            )
            total = settle_in_memory(total, waiting_at, BLOCK_OUTPUTS * BLOCK_ROWS, segment, SEGMENTS - 1, LEVELS)
    else:
        total, up_total = sum_any_segment(
            weight_at,
            up_at,
            x_at,
            input_scales,
            rows,
            num_rows,
            row_mask,
            first_segment,
            SIZE,
            IS_GATED,
            GROUP_SIZE,
            GROUPS_PER_STEP,
            BLOCK_OUTPUTS,
            BLOCK_ROWS,
            BLOCK_INPUTS,
            POLICY,
        )
    mask = (outputs < WIDTH)[:, None] & row_mask[None, :]
    out_at = rows.to(tl.int64)[None, :] * WIDTH + outputs[:, None]
    if IS_SPLIT:
        slab = num_rows.to(tl.int64) * WIDTH
        tl.store(out + first_segment * slab + out_at, total, mask=mask)
    else:
        lanes = outputs[:, None]
        lane_mask = lanes < WIDTH
        value = add_bias(total, weight_scales, bias, lanes, lane_mask)
        if IS_GATED:
            value = silu_and_mul(value, add_bias(up_total, weight_scales, bias, lanes + WIDTH, lane_mask))
        elif residual is not None:
            value = value + tl.load(residual + out_at, mask=mask, other=0.0)
        tl.store(out + out_at, round_to(value, out.dtype.element_ty), mask=mask)
