"""The recurrence of attention (design 7.1): a tile of 64 tokens into a segment's state, a segment's into the whole.

Scores are kept in units of log 2, so that weights are powers of two. A state is (largest f32 [M], total f32 [M],
weighted f32 [M, D]); what a row does not see leaves its state as it was, bit for bit.
"""

import triton
import triton.language as tl

from kernels.triton.jit.arithmetic import INTERPRETED, dot, exp_nonpositive
from kernels.triton.jit.rounding import round_to

TILE: tl.constexpr = tl.constexpr(64)
TILES_PER_SEGMENT: tl.constexpr = tl.constexpr(16)
SEGMENT: tl.constexpr = tl.constexpr(1024)


@triton.jit
def multiply(a, b, acc):
    """acc + a · b. NumPy's order of addition depends on a row's place: rounded from float64, that is not seen."""
    if INTERPRETED:
        exact = tl.dot(a.to(tl.float32).to(tl.float64), b.to(tl.float32).to(tl.float64), out_dtype=tl.float64)
        return (acc.to(tl.float64) + exact).to(tl.float32)
    else:
        return dot(a, b, acc)


@triton.jit
def empty_state(ROWS: tl.constexpr, HEAD_LANES: tl.constexpr):
    """Nothing seen yet."""
    largest = tl.full([ROWS], float("-inf"), tl.float32)
    return largest, tl.zeros([ROWS], tl.float32), tl.zeros([ROWS, HEAD_LANES], tl.float32)


@triton.jit
def finite_base(largest):
    """What scores are measured from: the maximum, or 0 for a row that has seen nothing (−inf − −inf is NaN)."""
    return tl.where(largest == float("-inf"), 0.0, largest)


@triton.jit
def merge(largest, total, weighted, later_largest, later_total, later_weighted):
    """Add a later segment's state. Into the empty state: that segment's own, but for the sign of zeros."""
    merged = tl.maximum(largest, later_largest)
    base = finite_base(merged)
    decay = tl.exp2(largest - base)
    later_decay = tl.exp2(later_largest - base)
    total = total * decay + later_total * later_decay
    weighted = weighted * decay[:, None] + later_weighted * later_decay[:, None]
    return merged, total, weighted


@triton.jit
def tanh(x):
    """tanh of float32, within 2⁻²² of it."""
    decayed = exp_nonpositive(tl.abs(x) * -2.0)
    magnitude = tl.div_rn(1.0 - decayed, 1.0 + decayed)
    return tl.where(x < 0.0, -magnitude, magnitude)


@triton.jit
def finish(total, weighted, is_row):
    """The weighted mean. Adding 0 makes −0, which a merge more or less would leave or not, +0.

    One division a row, not one an element: each would be code of its own."""
    return weighted * tl.div_rn(1.0, tl.where(is_row, total, 1.0))[:, None] + 0.0


@triton.jit
def load_blocks(tile, table, first_seen, last, BLOCK_SIZE: tl.constexpr):
    """The blocks i32 [64] of a tile's tokens. Entries that no row sees name any block, or none: they are not read."""
    tokens = tile * TILE + tl.arange(0, TILE)
    return tl.load(table + tokens // BLOCK_SIZE, mask=(tokens >= first_seen) & (tokens <= last), other=0)


@triton.jit
def load_heads(pointers, is_seen, HEAD_SIZE: tl.constexpr, HEAD_LANES: tl.constexpr):
    """[64, HEAD_LANES] of K or V, 0 where nothing is seen and beyond the head."""
    mask = is_seen[:, None]
    if HEAD_LANES != HEAD_SIZE:
        mask = mask & (tl.arange(0, HEAD_LANES) < HEAD_SIZE)[None, :]
    return tl.load(pointers, mask=mask, other=0.0)


@triton.jit
def as_operand(heads, DTYPE: tl.constexpr):
    """K or V as the matrix unit takes it. Whole numbers and fp8 are exact in bfloat16."""
    if heads.dtype == DTYPE:
        return heads
    else:
        return heads.to(tl.float32).to(DTYPE)


@triton.jit
def visit_tile(
    largest,
    total,
    weighted,
    queries,
    row_positions,
    tile,
    blocks,
    first_seen,
    last,
    keys_of_head,
    scales_of_head,
    factor,
    cap_factor,
    HEAD_SIZE: tl.constexpr,
    HEAD_LANES: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    BLOCK_STRIDE: tl.constexpr,
    SCALES_STRIDE: tl.constexpr,
    WINDOW: tl.constexpr,
    HAS_SCALES: tl.constexpr,
    HAS_SOFT_CAP: tl.constexpr,
    HAS_ONE_POSITION: tl.constexpr,
    IS_CAREFUL: tl.constexpr,
):
    """One step of the online softmax (arXiv 1805.02867)."""
    DTYPE: tl.constexpr = queries.dtype
    TOKEN_STRIDE: tl.constexpr = NUM_KV_HEADS * HEAD_SIZE
    tokens = tile * TILE + tl.arange(0, TILE)
    is_seen = (tokens >= first_seen) & (tokens <= last)
    offsets = blocks.to(tl.int64) * BLOCK_STRIDE + (tokens % BLOCK_SIZE) * TOKEN_STRIDE
    keys_at = keys_of_head + offsets[:, None] + tl.arange(0, HEAD_LANES)[None, :]
    keys = as_operand(load_heads(keys_at, is_seen, HEAD_SIZE, HEAD_LANES), DTYPE)
    scores = multiply(queries, tl.trans(keys), tl.zeros([queries.shape[0], TILE], tl.float32))
    if HAS_SCALES:
        scales_at = scales_of_head + blocks.to(tl.int64) * SCALES_STRIDE + (tokens % BLOCK_SIZE) * NUM_KV_HEADS
        scores = scores * tl.load(scales_at, mask=is_seen, other=0.0)[None, :]
    if HAS_SOFT_CAP:
        scores = tanh(scores * cap_factor)
    if HAS_ONE_POSITION:
        is_visible = is_seen[None, :]
    else:
        is_visible = tokens[None, :] <= row_positions[:, None]
        if WINDOW > 0:
            is_visible = is_visible & (tokens[None, :] > row_positions[:, None] - WINDOW)
    scores = tl.where(is_visible, scores, float("-inf"))
    new_largest = tl.maximum(largest, tl.max(scores, axis=1) * factor)
    base = finite_base(new_largest)
    decay = tl.exp2(largest - base)
    weights = tl.exp2(tl.fma(scores, factor, -base[:, None]))
    total = total * decay + tl.sum(weights, axis=1)
    weighted = weighted * decay[:, None]
    values_at = keys_at + BLOCK_SIZE * TOKEN_STRIDE
    values = as_operand(load_heads(values_at, is_seen, HEAD_SIZE, HEAD_LANES), DTYPE)
    if HAS_SCALES:
        weights = weights * tl.load(scales_at + BLOCK_SIZE * NUM_KV_HEADS, mask=is_seen, other=0.0)[None, :]
        weights = tl.where(is_visible, weights, 0.0)
    if IS_CAREFUL:
        # All of such a row becomes NaN, not the value's column alone: no use of it remains either way.
        IS_WIDE: tl.constexpr = DTYPE.primitive_bitwidth == 32
        BITS: tl.constexpr = tl.int32 if IS_WIDE else tl.int16
        INFINITE: tl.constexpr = 0x7F800000 if IS_WIDE else 0x7F80
        bits = values.to(BITS, bitcast=True)
        is_broken = (bits & INFINITE) == INFINITE
        values = tl.where(is_broken, 0, bits).to(DTYPE, bitcast=True)
        sees_broken = is_visible & (tl.max(is_broken.to(tl.int32), axis=1) > 0)[None, :]
        weighted = tl.where((tl.max(sees_broken.to(tl.int32), axis=1) > 0)[:, None], float("nan"), weighted)
    return new_largest, total, multiply(round_to(weights, DTYPE), values, weighted)


@triton.jit
def attend(
    queries,
    row_positions,
    is_row,
    first_segment,
    end_segment,
    table,
    keys_of_head,
    scales_of_head,
    factor,
    cap_factor,
    HEAD_SIZE: tl.constexpr,
    HEAD_LANES: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    BLOCK_STRIDE: tl.constexpr,
    SCALES_STRIDE: tl.constexpr,
    WINDOW: tl.constexpr,
    HAS_SCALES: tl.constexpr,
    HAS_SOFT_CAP: tl.constexpr,
    HAS_ONE_POSITION: tl.constexpr,
    IS_CAREFUL: tl.constexpr,
    STAGES: tl.constexpr,
):
    """The state of ``queries`` [M, HEAD_LANES] after segments ``first_segment`` … ``end_segment`` − 1, merged in order.

    ``row_positions`` i32 [M], −1 where ``is_row`` is false. ``HAS_ONE_POSITION``: all rows have the same one; if not,
    a value that is not finite may be seen by some rows and spoil the others (0 · NaN is NaN), unless ``IS_CAREFUL``.
    """
    last = tl.max(row_positions, axis=0)
    first_seen = 0
    if WINDOW > 0:
        first_seen = tl.maximum(tl.min(tl.where(is_row, row_positions, 0x7FFFFFFF), axis=0) - WINDOW + 1, 0)
    largest, total, weighted = empty_state(queries.shape[0], HEAD_LANES)
    for segment in range(first_segment, end_segment):
        begin = tl.maximum(segment * TILES_PER_SEGMENT, first_seen // TILE)
        end = tl.minimum((segment + 1) * TILES_PER_SEGMENT, last // TILE + 1)
        in_largest, in_total, in_weighted = empty_state(queries.shape[0], HEAD_LANES)
        # One loop for whole tiles and those at the borders: with two, ptxas lets no two products run at a time.
        # Blocks are read a tile ahead, so that the addresses of keys wait for no load.
        blocks = load_blocks(begin, table, first_seen, last, BLOCK_SIZE)
        for tile in tl.range(begin, end, num_stages=STAGES):
            next_blocks = load_blocks(tile + 1, table, first_seen, last, BLOCK_SIZE)
            in_largest, in_total, in_weighted = visit_tile(
                in_largest,
                in_total,
                in_weighted,
                queries,
                row_positions,
                tile,
                blocks,
                first_seen,
                last,
                keys_of_head,
                scales_of_head,
                factor,
                cap_factor,
                HEAD_SIZE,
                HEAD_LANES,
                BLOCK_SIZE,
                NUM_KV_HEADS,
                BLOCK_STRIDE,
                SCALES_STRIDE,
                WINDOW,
                HAS_SCALES,
                HAS_SOFT_CAP,
                HAS_ONE_POSITION,
                IS_CAREFUL,
            )
            blocks = next_blocks
        largest, total, weighted = merge(largest, total, weighted, in_largest, in_total, in_weighted)
    return largest, total, weighted
