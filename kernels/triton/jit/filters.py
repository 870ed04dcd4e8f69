"""top_k, top_p and min_p as a floor below which nothing is kept: exact, without a sort (design 7.4).

A row is first cut to a list of its largest values that surely holds the floor; the floor is then found by halving the
range of float32's ordered keys. Counts and fixed-point weights are integers, so their sums have no order.
"""

import triton
import triton.language as tl

from kernels.triton.jit import arithmetic
from kernels.triton.jit.adjustments import NEGATIVE_INFINITY, load_logits

LOWEST_TEMPERATURE: tl.constexpr = tl.constexpr(0.01)
FLOAT32_MAX: tl.constexpr = tl.constexpr(3.4028234663852886e38)
NUM_EDGES: tl.constexpr = tl.constexpr(8)
LAST_EDGE: tl.constexpr = tl.constexpr(7)


@triton.jit
def scale(values, temperature):
    """float32 logits over a temperature above 0, at most float32's largest."""
    return tl.minimum(tl.div_rn(values, tl.maximum(temperature, LOWEST_TEMPERATURE)), FLOAT32_MAX)


@triton.jit
def ordered_key(x):
    """int32 in the order of float32 ``x``, not NaN; both zeros have the same."""
    bits = x.to(tl.int32, bitcast=True)
    bits = tl.where(x == 0.0, 0, bits)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def value_of_key(key):
    """The float32 that has the int32 key."""
    return tl.where(key < 0, key ^ 0x7FFFFFFF, key).to(tl.float32, bitcast=True)


@triton.jit
def fixed_weight(scaled, largest):
    """exp(scaled − largest) in multiples of 2⁻⁴⁰, ties to even, as int64. Above 2²³ such a float is whole already."""
    x = arithmetic.exp_nonpositive(scaled - largest) * 1099511627776.0
    return tl.where(x < 8388608.0, (x + 8388608.0) - 8388608.0, x).to(tl.int64)


@triton.jit
def share_of(p, total):
    """ceil(p · total) for float32 p < 1 and int64 total ≥ 0, exactly: the product has up to 88 bits."""
    bits = tl.maximum(p, 0.0).to(tl.int32, bitcast=True) & 0x7FFFFFFF
    exponent = bits >> 23
    fraction = bits & 0x7FFFFF
    mantissa = tl.where(exponent > 0, fraction | 0x800000, fraction).to(tl.uint64)
    shift = (150 - tl.maximum(exponent, 1)).to(tl.uint64)  # 24 … 149
    low = mantissa * total.to(tl.uint64)
    high = tl.umulhi(mantissa, total.to(tl.uint64))
    one = tl.full((), 1, tl.uint64)
    low_shift = tl.minimum(shift, 63)
    high_shift = tl.minimum(tl.maximum(shift, 64) - 64, 63)
    is_short = shift < 64
    quotient = tl.where(is_short, (low >> low_shift) | (high << (64 - low_shift)), high >> high_shift)
    low_rest = tl.where(is_short, low & ((one << low_shift) - 1), low)
    high_rest = tl.where(is_short, 0, high & ((one << high_shift) - 1))
    return quotient.to(tl.int64) + ((low_rest | high_rest) != 0).to(tl.int64)


@triton.jit
def edge_below(largest, index):
    """The least value above edge ``index`` of 0 … 7, which lie closer together near the largest; the last has all."""
    index = tl.full((), 0, tl.int32) + index
    distance = (index + 1).to(tl.float32) * (index + 2).to(tl.float32) * 0.25
    return tl.where(index == LAST_EDGE, NEGATIVE_INFINITY, largest - distance)


@triton.jit
def has_top_k(top_k, num_ids):
    return (top_k > 0) & (top_k < num_ids)


@triton.jit
def asks_filters(top_k, top_p, min_p, row):
    return (tl.load(top_k + row) > 0) | (tl.load(top_p + row) < 1.0) | (tl.load(min_p + row) > 0.0)


@triton.jit
def largest_of_row(partial_largest, row, num_chunks, CHUNKS: tl.constexpr):
    """0 where the row has nothing left, so that nothing can be subtracted from it."""
    chunks = tl.arange(0, CHUNKS)
    parts = tl.load(partial_largest + row * num_chunks + chunks, mask=chunks < num_chunks, other=NEGATIVE_INFINITY)
    largest = tl.max(parts, axis=0)
    return tl.where(largest > NEGATIVE_INFINITY, largest, 0.0)


@triton.jit(do_not_specialize=["temperature", "top_k", "top_p", "min_p"])
def find_largest(
    logits,
    logits_stride,
    adjusted,
    is_adjusted,
    num_ids,
    temperature,
    top_k,
    top_p,
    min_p,
    partial_largest,
    list_lengths,
    HAS_ADJUSTED: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """The largest scaled value of each chunk of the filtered rows. Their lists are empty."""
    row, chunk = tl.program_id(0), tl.program_id(1)
    heat = tl.load(temperature + row)
    if chunk == 0:
        tl.store(list_lengths + row, 0)
    if (heat > 0.0) & asks_filters(top_k, top_p, min_p, row):
        ids = chunk * CHUNK + tl.arange(0, CHUNK)
        values = load_logits(logits, logits_stride, adjusted, is_adjusted, row, ids, num_ids, HAS_ADJUSTED)
        largest = tl.max(scale(values, heat), axis=0)
        tl.store(partial_largest + row * tl.num_programs(1) + chunk, largest)


@triton.jit(do_not_specialize=["temperature", "top_k", "top_p"])
def weigh(
    logits,
    logits_stride,
    adjusted,
    is_adjusted,
    num_ids,
    temperature,
    top_k,
    top_p,
    partial_largest,
    partial_masses,
    HAS_ADJUSTED: tl.constexpr,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
):
    """How many of a chunk's values lie above each edge, or what they weigh: i64 [R, chunks, 8]."""
    row, chunk, num_chunks = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    heat = tl.load(temperature + row)
    counts_values = has_top_k(tl.load(top_k + row), num_ids)
    if (heat > 0.0) & (counts_values | (tl.load(top_p + row) < 1.0)):
        largest = largest_of_row(partial_largest, row, num_chunks, CHUNKS)
        ids = chunk * CHUNK + tl.arange(0, CHUNK)
        values = load_logits(logits, logits_stride, adjusted, is_adjusted, row, ids, num_ids, HAS_ADJUSTED)
        scaled = scale(values, heat)
        is_left = scaled > NEGATIVE_INFINITY
        masses = partial_masses + (row.to(tl.int64) * num_chunks + chunk) * NUM_EDGES
        if counts_values:
            for index in range(NUM_EDGES):
                is_above = is_left & (scaled >= edge_below(largest, index))
                tl.store(masses + index, tl.sum(is_above.to(tl.int32), axis=0).to(tl.int64))
        else:
            weights = tl.where(is_left, fixed_weight(scaled, largest), 0)
            for index in range(NUM_EDGES):
                is_above = is_left & (scaled >= edge_below(largest, index))
                tl.store(masses + index, tl.sum(tl.where(is_above, weights, 0), axis=0))


@triton.jit
def masses_of_row(partial_masses, row, num_chunks, CHUNKS: tl.constexpr):
    chunks = tl.arange(0, CHUNKS)
    places = (row.to(tl.int64) * num_chunks + chunks)[:, None] * NUM_EDGES + tl.arange(0, NUM_EDGES)[None, :]
    is_chunk = (chunks < num_chunks)[:, None] & (tl.arange(0, NUM_EDGES) < NUM_EDGES)[None, :]
    return tl.sum(tl.load(partial_masses + places, mask=is_chunk, other=0), axis=0)


@triton.jit(do_not_specialize=["temperature", "top_k", "top_p"])
def collect(
    logits,
    logits_stride,
    adjusted,
    is_adjusted,
    num_ids,
    temperature,
    top_k,
    top_p,
    partial_largest,
    partial_masses,
    lists,
    list_lengths,
    list_edges,
    totals,
    HAS_ADJUSTED: tl.constexpr,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
):
    """``lists`` f32 [R, num_ids]: the values above the first edge that has enough above it, in any order. If even all
    are too few, the edge is −inf. ``totals`` i64 [R]: what was weighed."""
    row, chunk, num_chunks = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    heat = tl.load(temperature + row)
    count = tl.load(top_k + row)
    share = tl.load(top_p + row)
    counts_values = has_top_k(count, num_ids)
    if (heat > 0.0) & (counts_values | (share < 1.0)):
        largest = largest_of_row(partial_largest, row, num_chunks, CHUNKS)
        masses = masses_of_row(partial_masses, row, num_chunks, CHUNKS)
        edges = tl.arange(0, NUM_EDGES)
        total = tl.max(masses, axis=0)
        needed = tl.where(counts_values, count, share_of(share, total))
        edge = edge_below(largest, tl.min(tl.where(masses >= needed, edges, LAST_EDGE), axis=0))
        if chunk == 0:
            tl.store(list_edges + row, edge)
            tl.store(totals + row, total)
        ids = chunk * CHUNK + tl.arange(0, CHUNK)
        values = load_logits(logits, logits_stride, adjusted, is_adjusted, row, ids, num_ids, HAS_ADJUSTED)
        scaled = scale(values, heat)
        is_listed = (scaled > NEGATIVE_INFINITY) & (scaled >= edge)
        places = tl.cumsum(is_listed.to(tl.int32), axis=0)
        num_listed = tl.max(places, axis=0)
        if num_listed > 0:
            first = tl.atomic_add(list_lengths + row, num_listed, sem="relaxed")
            tl.store(lists + row.to(tl.int64) * num_ids + first + places - 1, scaled, mask=is_listed)


@triton.jit
def mass_from(values, length, key, largest, COUNTS: tl.constexpr, BLOCK: tl.constexpr):
    """How many of the list's values have at least that key, or what they weigh: int64."""
    total = tl.zeros((BLOCK,), tl.int64)
    for first in range(0, length, BLOCK):
        places = first + tl.arange(0, BLOCK)
        scaled = tl.load(values + places, mask=places < length, other=NEGATIVE_INFINITY)
        is_in = (places < length) & (ordered_key(scaled) >= key)
        if COUNTS:
            total += is_in.to(tl.int64)
        else:
            total += tl.where(is_in, fixed_weight(scaled, largest), 0)
    return tl.sum(total, axis=0)


@triton.jit
def highest_key(values, length, low, needed, largest, COUNTS: tl.constexpr, BLOCK: tl.constexpr):
    """The highest int32 key, at least ``low``, from which on the list's mass is ``needed``, as from ``low`` on it is:
    the least key among those whose strictly larger ones have less than ``needed``."""
    lower = low.to(tl.int64)
    upper = ordered_key(largest).to(tl.int64)
    while lower < upper:
        middle = lower + ((upper - lower + 1) >> 1)
        is_enough = mass_from(values, length, middle.to(tl.int32), largest, COUNTS, BLOCK) >= needed
        lower = tl.where(is_enough, middle, lower)
        upper = tl.where(is_enough, upper, middle - 1)
    return lower.to(tl.int32)


@triton.jit(do_not_specialize=["temperature", "top_k", "top_p"])
def find_floor(
    num_ids,
    temperature,
    top_k,
    top_p,
    partial_largest,
    lists,
    list_lengths,
    list_edges,
    totals,
    floors,
    num_chunks,
    BLOCK: tl.constexpr,
    CHUNKS: tl.constexpr,
):
    """One program a row: the least value that top_k, then top_p, keep; −inf where neither drops any."""
    row = tl.program_id(0)
    floor = tl.full((), NEGATIVE_INFINITY, tl.float32)
    length = tl.load(list_lengths + row)
    if length > 0:
        largest = largest_of_row(partial_largest, row, num_chunks, CHUNKS)
        values = lists + row.to(tl.int64) * num_ids
        low = ordered_key(tl.load(list_edges + row))
        count = tl.load(top_k + row)
        if has_top_k(count, num_ids) & (count <= length):
            low = highest_key(values, length, low, count, largest, True, BLOCK)
        share = tl.load(top_p + row)
        if share < 1.0:
            total = tl.load(totals + row)  # of the row, which top_k cuts to a part of its list
            if has_top_k(count, num_ids):
                total = mass_from(values, length, low, largest, False, BLOCK)
            needed = share_of(share, total)
            low = highest_key(values, length, low, needed, largest, False, BLOCK)
        floor = value_of_key(low)
    tl.store(floors + row, floor)
