"""Keys and values into the blocks of a cache, alone or after the norms and the rotation of a layer's heads.

A program takes some heads of one row. How a block's bytes lie: ``kernels.triton.kv.TritonKVLayout``.
"""

import triton
import triton.language as tl

from kernels.triton.jit.arithmetic import round_to_even
from kernels.triton.jit.layers import (
    INFINITY_BITS,
    largest_bits,
    load_turn,
    partner_columns,
    root_mean_square,
    rotate,
)
from kernels.triton.jit.rounding import round_to

SMALLEST_SCALE: tl.constexpr = tl.constexpr(1e-37)


@triton.jit
def quantize_heads(x, LARGEST: tl.constexpr):
    """x f32 [R, N] as multiples, up to ``LARGEST``, of the scales f32 [R]: max|x| / ``LARGEST``.

    Heads too small to divide by become 0. One that is not finite gets the scale NaN: it spoils whoever sees it.
    """
    bits = largest_bits(x)
    is_finite = bits < INFINITY_BITS
    scale = tl.div_rn(bits.to(tl.float32, bitcast=True), LARGEST * 1.0)
    is_usable = is_finite & (scale >= SMALLEST_SCALE)
    numbers = tl.where(is_usable[:, None], x, 0.0)
    multiples = tl.div_rn(numbers, tl.where(is_usable, scale, 1.0)[:, None])
    return multiples, tl.where(is_finite, tl.where(is_usable, scale, 0.0), float("nan"))


@triton.jit
def store_heads(
    x, heads, columns, part, slot, values, scales,
    values_stride, scales_stride,
    NUM_KV_HEADS: tl.constexpr, SIZE: tl.constexpr, BLOCK_SIZE: tl.constexpr, SCALES_START: tl.constexpr,
    LARGEST: tl.constexpr,
):  # fmt: skip
    """x f32 [heads, columns] to slot ``slot``, as keys (``part`` 0) or values (1). ``LARGEST`` 0: no scales."""
    block = slot // BLOCK_SIZE
    place = part * BLOCK_SIZE + slot % BLOCK_SIZE
    is_kept = heads < NUM_KV_HEADS
    mask = is_kept[:, None] & (columns < SIZE)[None, :]
    index = place * NUM_KV_HEADS + heads
    if LARGEST > 0:
        x, scale = quantize_heads(x, LARGEST)
        tl.store(scales + block * scales_stride + SCALES_START + index, scale, is_kept)
        if LARGEST == 127:
            x = round_to_even(x)
    to = values + block * values_stride + index[:, None] * SIZE + columns[None, :]
    tl.store(to, round_to(x, values.dtype.element_ty), mask)


@triton.jit
def load_heads(rows, row, heads, columns, row_stride, head_stride, NUM_HEADS: tl.constexpr, SIZE: tl.constexpr):
    """Heads of a row, in their own dtype [heads, columns]."""
    mask = (heads < NUM_HEADS)[:, None] & (columns < SIZE)[None, :]
    return tl.load(rows + row * row_stride + heads[:, None] * head_stride + columns[None, :], mask, other=0.0)


@triton.jit
def turn_heads(
    rows, row, heads, columns, row_stride, head_stride, weight, eps, position, cos_sin, cos_sin_stride,
    NUM_HEADS: tl.constexpr, SIZE: tl.constexpr, ROTATED: tl.constexpr, HAS_NORMS: tl.constexpr,
):  # fmt: skip
    """Heads of a row, normed if so wished, and rotated: f32 [heads, columns]."""
    partners = partner_columns(columns, ROTATED)
    mask = (heads < NUM_HEADS)[:, None] & (columns < SIZE)[None, :]
    starts = rows + row * row_stride + heads[:, None] * head_stride
    x = tl.load(starts + columns[None, :], mask, other=0.0)
    partner = tl.load(starts + partners[None, :], mask, other=0.0)
    cos, sin = load_turn(cos_sin, position, cos_sin_stride, columns, ROTATED)
    if HAS_NORMS:
        root = root_mean_square(x, SIZE * 1.0, eps)[:, None]
        x = tl.div_rn(x, root) * tl.load(weight + columns, columns < SIZE, other=0.0)[None, :]
        partner = tl.div_rn(partner, root) * tl.load(weight + partners, columns < SIZE, other=0.0)[None, :]
    return rotate(x, partner, cos, sin, columns, ROTATED)


@triton.jit
def write_kv_kernel(
    k, v, values, scales, kv_slots,
    k_row_stride, k_head_stride, v_row_stride, v_head_stride, values_stride, scales_stride,
    NUM_KV_HEADS: tl.constexpr, SIZE: tl.constexpr, BLOCK_SIZE: tl.constexpr, SCALES_START: tl.constexpr,
    LARGEST: tl.constexpr, HEADS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    columns = tl.arange(0, BLOCK)
    slot = tl.load(kv_slots + row)
    keys = load_heads(k, row, heads, columns, k_row_stride, k_head_stride, NUM_KV_HEADS, SIZE).to(tl.float32)
    values_read = load_heads(v, row, heads, columns, v_row_stride, v_head_stride, NUM_KV_HEADS, SIZE).to(tl.float32)
    store_heads(
        keys, heads, columns, 0, slot, values, scales, values_stride, scales_stride,
        NUM_KV_HEADS, SIZE, BLOCK_SIZE, SCALES_START, LARGEST,
    )  # fmt: skip
    store_heads(
        values_read, heads, columns, 1, slot, values, scales, values_stride, scales_stride,
        NUM_KV_HEADS, SIZE, BLOCK_SIZE, SCALES_START, LARGEST,
    )  # fmt: skip


@triton.jit
def rotary_write_kv_kernel(
    q, k, v, q_out, q_weight, k_weight, positions, cos_sin, values, scales, kv_slots, eps,
    q_row_stride, q_head_stride, k_row_stride, k_head_stride, v_row_stride, v_head_stride, cos_sin_stride,
    values_stride, scales_stride,
    NUM_HEADS: tl.constexpr, NUM_KV_HEADS: tl.constexpr, SIZE: tl.constexpr, ROTATED: tl.constexpr,
    HAS_NORMS: tl.constexpr, BLOCK_SIZE: tl.constexpr, SCALES_START: tl.constexpr, LARGEST: tl.constexpr,
    HEADS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Along the grid's second axis: programs for the query heads, then for the keys, then for the values."""
    row = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1)
    columns = tl.arange(0, BLOCK)
    query_groups: tl.constexpr = (NUM_HEADS + HEADS - 1) // HEADS
    kv_groups: tl.constexpr = (NUM_KV_HEADS + HEADS - 1) // HEADS
    dtype: tl.constexpr = q_out.dtype.element_ty
    if group < query_groups:
        heads = group * HEADS + tl.arange(0, HEADS)
        turned = turn_heads(
            q, row, heads, columns, q_row_stride, q_head_stride, q_weight, eps, tl.load(positions + row),
            cos_sin, cos_sin_stride, NUM_HEADS, SIZE, ROTATED, HAS_NORMS,
        )  # fmt: skip
        to = q_out + (row * NUM_HEADS + heads[:, None]) * SIZE + columns[None, :]
        tl.store(to, round_to(turned, dtype), (heads < NUM_HEADS)[:, None] & (columns < SIZE)[None, :])
    elif group < query_groups + kv_groups:
        heads = (group - query_groups) * HEADS + tl.arange(0, HEADS)
        turned = turn_heads(
            k, row, heads, columns, k_row_stride, k_head_stride, k_weight, eps, tl.load(positions + row),
            cos_sin, cos_sin_stride, NUM_KV_HEADS, SIZE, ROTATED, HAS_NORMS,
        )  # fmt: skip
        store_heads(
            round_to(turned, dtype).to(tl.float32), heads, columns, 0, tl.load(kv_slots + row), values, scales,
            values_stride, scales_stride, NUM_KV_HEADS, SIZE, BLOCK_SIZE, SCALES_START, LARGEST,
        )  # fmt: skip
    else:
        heads = (group - query_groups - kv_groups) * HEADS + tl.arange(0, HEADS)
        x = load_heads(v, row, heads, columns, v_row_stride, v_head_stride, NUM_KV_HEADS, SIZE)
        store_heads(
            round_to(x, dtype).to(tl.float32), heads, columns, 1, tl.load(kv_slots + row), values, scales,
            values_stride, scales_stride, NUM_KV_HEADS, SIZE, BLOCK_SIZE, SCALES_START, LARGEST,
        )  # fmt: skip
