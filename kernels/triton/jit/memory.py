"""Moving data without arithmetic: blocks to blocks, token ids in and out of the slot table."""

import triton
import triton.language as tl


@triton.jit
def move_blocks_kernel(
    cache, staged, ids, cache_stride, TO_CACHE: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr
):
    """Between blocks ``ids`` of the cache and the rows of ``staged`` [n, SIZE]; sizes are in words."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < SIZE
    in_cache = cache + tl.load(ids + row) * cache_stride + columns
    in_staged = staged + row * SIZE + columns
    if TO_CACHE:
        tl.store(in_cache, tl.load(in_staged, mask), mask)
    else:
        tl.store(in_staged, tl.load(in_cache, mask), mask)


@triton.jit(do_not_specialize=["num_rows"])
def gather_tokens_kernel(tokens, slots, positions, out, num_rows, slot_stride, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = rows < num_rows
    slot, position = tl.load(slots + rows, mask, other=0), tl.load(positions + rows, mask, other=0)
    ids = tl.load(tokens + slot * slot_stride + position, mask)
    tl.store(out + rows, ids.to(tl.int64), mask)


@triton.jit(do_not_specialize=["num_rows"])
def store_tokens_kernel(
    tokens, slots, positions, ids, num_rows, slot_stride, NUM_POSITIONS: tl.constexpr, BLOCK: tl.constexpr
):
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = rows < num_rows
    slot, position = tl.load(slots + rows, mask, other=0), tl.load(positions + rows, mask, other=-1)
    is_inside = (position >= 0) & (position < NUM_POSITIONS)
    chosen = tl.load(ids + rows, mask, other=0)
    tl.store(tokens + slot * slot_stride + position, chosen.to(tl.int32), is_inside)
