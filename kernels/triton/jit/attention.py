"""The kernels of paged attention: decode by segment, the merge of its segments, prefill by tile of rows.

Which rows share a program, or a launch, is for speed only: attention_softmax decides a row's bits. Where it runs with
other numbers of rows the matrix unit may add in another order.
"""

import triton
import triton.language as tl

from kernels.triton.jit.attention_softmax import SEGMENT, attend, empty_state, finish, merge
from kernels.triton.jit.rounding import round_to


@triton.jit
def seen_segments(query_start, positions, sequence, most_parts, WINDOW: tl.constexpr):
    """(first row, rows, first segment that a row sees, number of those, parts that they are divided into)."""
    start = tl.load(query_start + sequence)
    num_rows = tl.load(query_start + sequence + 1) - start
    first = 0
    if WINDOW > 0:
        first_row = tl.load(positions + start, mask=num_rows > 0, other=0).to(tl.int32)
        first = tl.maximum(first_row - WINDOW + 1, 0) // SEGMENT
    last_row = tl.load(positions + start + num_rows - 1, mask=num_rows > 0, other=0).to(tl.int32)
    num_segments = last_row // SEGMENT + 1 - first
    return start, num_rows, first, num_segments, tl.minimum(num_segments, most_parts)


@triton.jit
def load_queries(
    q,
    positions,
    rows,
    heads,
    is_row,
    NUM_HEADS: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    HEAD_LANES: tl.constexpr,
    DTYPE: tl.constexpr,
):
    """Queries [M, HEAD_LANES], 0 where there is none, and positions i32 [M], −1 there. ``rows`` i64 [M]."""
    lanes = tl.arange(0, HEAD_LANES)
    at = (rows * NUM_HEADS + heads) * HEAD_SIZE
    mask = is_row[:, None] & (lanes < HEAD_SIZE)[None, :]
    queries = tl.load(q + at[:, None] + lanes[None, :], mask=mask, other=0.0)
    return queries.to(DTYPE), tl.load(positions + rows, mask=is_row, other=-1).to(tl.int32)


@triton.jit
def read_again(pointer):
    """What has been read before the loop. Addresses made of this are made after the loop: those of the queries, which
    they equal, would lie in registers all along."""
    return tl.load(pointer, volatile=True)


@triton.jit
def store_heads(out, rows, heads, is_row, values, NUM_HEADS: tl.constexpr, HEAD_SIZE: tl.constexpr):
    """``values`` [M, HEAD_LANES] to out [T, NUM_HEADS, HEAD_SIZE] in its dtype."""
    lanes = tl.arange(0, values.shape[1])
    at = (rows * NUM_HEADS + heads) * HEAD_SIZE
    mask = is_row[:, None] & (lanes < HEAD_SIZE)[None, :]
    tl.store(out + at[:, None] + lanes[None, :], round_to(values, out.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["table_stride", "num_window_items", "window_parts"])
def decode_kernel(
    q,
    cache,
    scales,
    out,
    partial_values,
    partial_sums,
    query_start,
    positions,
    block_tables,
    counts,
    items,
    decode_start,
    table_stride,
    num_window_items,
    window_parts,
    factor,
    cap_factor,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    HEAD_LANES: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_STRIDE: tl.constexpr,
    SCALES_STRIDE: tl.constexpr,
    SCALES_START: tl.constexpr,
    WINDOW: tl.constexpr,
    HAS_SCALES: tl.constexpr,
    HAS_SOFT_CAP: tl.constexpr,
    HAS_ONE_POSITION: tl.constexpr,
    DTYPE: tl.constexpr,
    ROWS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Any grid: programs share the items, each a part of a sequence for one KV head.

    Each part has one segment but the first, which has all before: they are merged in order anyway. The only part of a
    sequence gives its result, several leave their states for ``merge_kernel``. ``HAS_ONE_POSITION``: tiles of rows
    are of one token each, else they may be of several."""
    HEADS_PER_KV_HEAD: tl.constexpr = NUM_HEADS // NUM_KV_HEADS
    TILES_PER_TOKEN: tl.constexpr = (HEADS_PER_KV_HEAD + ROWS - 1) // ROWS
    most_parts = tl.load(counts + 1)
    num_items = num_window_items if WINDOW > 0 else tl.load(counts)
    for index in range(tl.program_id(0), num_items * NUM_KV_HEADS, tl.num_programs(0)):
        item = index // NUM_KV_HEADS
        kv_head = index % NUM_KV_HEADS
        if WINDOW > 0:
            sequence = item // window_parts
            part = item % window_parts
        else:
            sequence = tl.load(items + item * 2)
            part = tl.load(items + item * 2 + 1)
        partial_row = tl.load(decode_start + sequence)
        start, num_rows, first_segment, num_segments, num_parts = seen_segments(
            query_start, positions, sequence, most_parts, WINDOW
        )
        end_segment = first_segment + num_segments - num_parts + part + 1
        if part > 0:
            first_segment = end_segment - 1
        if HAS_ONE_POSITION:
            num_tiles = num_rows * TILES_PER_TOKEN
        else:
            num_tiles = (num_rows * HEADS_PER_KV_HEAD + ROWS - 1) // ROWS
        if (partial_row < 0) | (part >= num_parts):
            num_tiles = 0
        for tile in range(num_tiles):
            if HAS_ONE_POSITION:
                group_heads = tile % TILES_PER_TOKEN * ROWS + tl.arange(0, ROWS)
                tokens = tile // TILES_PER_TOKEN + tl.zeros([ROWS], tl.int32)
                is_row = group_heads < HEADS_PER_KV_HEAD
            else:
                flat = tile * ROWS + tl.arange(0, ROWS)
                group_heads = flat % HEADS_PER_KV_HEAD
                tokens = flat // HEADS_PER_KV_HEAD
                is_row = tokens < num_rows
            heads = kv_head * HEADS_PER_KV_HEAD + group_heads
            rows = (start + tokens).to(tl.int64)
            queries, row_positions = load_queries(
                q, positions, rows, heads, is_row, NUM_HEADS, HEAD_SIZE, HEAD_LANES, DTYPE
            )
            largest, total, weighted = attend(
                queries,
                row_positions,
                is_row,
                first_segment,
                end_segment,
                block_tables + sequence.to(tl.int64) * table_stride,
                cache + kv_head * HEAD_SIZE,
                scales + SCALES_START + kv_head,
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
                not HAS_ONE_POSITION,
                STAGES,
            )
            rows = read_again(query_start + sequence).to(tl.int64) + tokens
            if num_parts == 1:
                store_heads(out, rows, heads, is_row, finish(total, weighted, is_row), NUM_HEADS, HEAD_SIZE)
            else:
                places = (read_again(decode_start + sequence) + tokens).to(tl.int64) * read_again(counts + 1) + part
                store_heads(partial_values, places, heads, is_row, weighted, NUM_HEADS, HEAD_SIZE)
                sums_at = partial_sums + (places * NUM_HEADS + heads) * 2
                tl.store(sums_at, largest, mask=is_row)
                tl.store(sums_at + 1, total, mask=is_row)


@triton.jit
def merge_kernel(
    out,
    partial_values,
    partial_sums,
    query_start,
    positions,
    counts,
    decode_start,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    HEAD_LANES: tl.constexpr,
    WINDOW: tl.constexpr,
    ROWS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Grid [S, G]: the parts of sequence s's rows, in order; ROWS ≥ heads per KV head."""
    HEADS_PER_KV_HEAD: tl.constexpr = NUM_HEADS // NUM_KV_HEADS
    sequence = tl.program_id(0)
    partial_row = tl.load(decode_start + sequence)
    if partial_row < 0:
        return
    most_parts = tl.load(counts + 1)
    start, num_rows, _, _, num_parts = seen_segments(query_start, positions, sequence, most_parts, WINDOW)
    if num_parts == 1:
        return
    group_heads = tl.arange(0, ROWS)
    is_row = group_heads < HEADS_PER_KV_HEAD
    heads = tl.program_id(1) * HEADS_PER_KV_HEAD + group_heads
    lanes = tl.arange(0, HEAD_LANES)
    mask = is_row[:, None] & (lanes < HEAD_SIZE)[None, :]
    for token in range(num_rows):
        largest, total, weighted = empty_state(ROWS, HEAD_LANES)
        place = (partial_row + token).to(tl.int64) * most_parts
        for part in tl.range(0, num_parts, num_stages=STAGES):
            at = (place + part) * NUM_HEADS + heads
            part_largest = tl.load(partial_sums + at * 2, mask=is_row, other=float("-inf"))
            part_total = tl.load(partial_sums + at * 2 + 1, mask=is_row, other=0.0)
            part_weighted = tl.load(partial_values + at[:, None] * HEAD_SIZE + lanes[None, :], mask=mask, other=0.0)
            largest, total, weighted = merge(largest, total, weighted, part_largest, part_total, part_weighted)
        rows = (start + token).to(tl.int64) + tl.zeros([ROWS], tl.int64)
        store_heads(out, rows, heads, is_row, finish(total, weighted, is_row), NUM_HEADS, HEAD_SIZE)


@triton.jit
def find_prefill(tile, prefill_start, num_prefill, HEADS_PER_KV_HEAD: tl.constexpr, ROWS: tl.constexpr):
    """(which of the prefills has row tile ``tile``, its first tile). Each has at least as many tiles as it needs."""
    low = num_prefill * 0
    high = num_prefill
    first_tile = num_prefill * 0
    while high - low > 1:
        middle = (low + high) // 2
        middle_tile = tl.load(prefill_start + middle) * HEADS_PER_KV_HEAD // ROWS + middle
        is_beyond = middle_tile > tile
        low = tl.where(is_beyond, low, middle)
        first_tile = tl.where(is_beyond, first_tile, middle_tile)
        high = tl.where(is_beyond, middle, high)
    return low, first_tile


@triton.jit(do_not_specialize=["table_stride"])
def prefill_kernel(
    q,
    cache,
    scales,
    out,
    query_start,
    positions,
    block_tables,
    counts,
    prefill_sequences,
    prefill_start,
    broken,
    table_stride,
    factor,
    cap_factor,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    HEAD_LANES: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_STRIDE: tl.constexpr,
    SCALES_STRIDE: tl.constexpr,
    SCALES_START: tl.constexpr,
    WINDOW: tl.constexpr,
    HAS_SCALES: tl.constexpr,
    HAS_SOFT_CAP: tl.constexpr,
    IS_CAREFUL: tl.constexpr,
    DTYPE: tl.constexpr,
    ROWS: tl.constexpr,
    PARTS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Grid [G, at least the row tiles, PARTS]: a part, ROWS (token, head of the group) rows, of a tile of a sequence.

    The last tiles, which see most, start first. ``broken`` i32 [G, tiles]: not 0 where a result is not finite, be it
    for a value that only other rows see: such tiles are done again with ``IS_CAREFUL``, which does no others."""
    HEADS_PER_KV_HEAD: tl.constexpr = NUM_HEADS // NUM_KV_HEADS
    num_prefill = tl.load(counts + 2)
    num_prefill_rows = tl.load(counts + 3)
    tile = num_prefill_rows * HEADS_PER_KV_HEAD // (ROWS * PARTS) + num_prefill - 1 - tl.program_id(1)
    if (tile < 0) | (num_prefill == 0):
        return
    index, first_tile = find_prefill(tile, prefill_start, num_prefill, HEADS_PER_KV_HEAD, ROWS * PARTS)
    sequence = tl.load(prefill_sequences + index)
    start = tl.load(query_start + sequence)
    num_rows = tl.load(query_start + sequence + 1) - start
    first_row = ((tile - first_tile) * PARTS + tl.program_id(2)) * ROWS
    flat = first_row + tl.arange(0, ROWS)
    tokens = flat // HEADS_PER_KV_HEAD
    is_row = tokens < num_rows
    if first_row >= num_rows * HEADS_PER_KV_HEAD:
        return
    kv_head = tl.program_id(0)
    broken_at = broken + kv_head * tl.num_programs(1) + tl.program_id(1)
    if IS_CAREFUL:  # noqa: SIM102, known when compiled
        if tl.load(broken_at) == 0:
            return
    heads = kv_head * HEADS_PER_KV_HEAD + flat % HEADS_PER_KV_HEAD
    rows = (start + tokens).to(tl.int64)
    queries, row_positions = load_queries(q, positions, rows, heads, is_row, NUM_HEADS, HEAD_SIZE, HEAD_LANES, DTYPE)
    first_segment = 0
    if WINDOW > 0:
        first_position = tl.min(tl.where(is_row, row_positions, 0x7FFFFFFF), axis=0)
        first_segment = tl.maximum(first_position - WINDOW + 1, 0) // SEGMENT
    _, total, weighted = attend(
        queries,
        row_positions,
        is_row,
        first_segment,
        tl.max(row_positions, axis=0) // SEGMENT + 1,
        block_tables + sequence.to(tl.int64) * table_stride,
        cache + kv_head * HEAD_SIZE,
        scales + SCALES_START + kv_head,
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
        False,
        IS_CAREFUL,
        STAGES,
    )
    if not IS_CAREFUL:
        is_finite = tl.abs(weighted) < float("inf")
        tl.store(broken_at, tl.max(tl.max(tl.where(is_finite, 0, 1), axis=1), axis=0))
    rows = read_again(query_start + sequence).to(tl.int64) + tokens
    store_heads(out, rows, heads, is_row, finish(total, weighted, is_row), NUM_HEADS, HEAD_SIZE)
