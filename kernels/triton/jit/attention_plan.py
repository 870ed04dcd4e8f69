"""What a step's attention finds out once, on the device: which sequences decode and what work that is, which do not."""

import triton
import triton.language as tl

from kernels.triton.jit.attention_softmax import SEGMENT

SEQUENCES: tl.constexpr = tl.constexpr(256)
ITEMS: tl.constexpr = tl.constexpr(128)


@triton.jit
def rows_and_segments(query_start, positions, sequences, num_sequences):
    """Rows of each of those sequences, and segments of 1,024 tokens up to its last position."""
    exists = sequences < num_sequences
    start = tl.load(query_start + sequences, mask=exists, other=0)
    end = tl.load(query_start + sequences + 1, mask=exists, other=0)
    last = tl.load(positions + end - 1, mask=end > start, other=0).to(tl.int32)
    return end - start, tl.where(end > start, last // SEGMENT + 1, 0)


@triton.jit(do_not_specialize=["num_sequences", "most_decode_rows", "num_partials"])
def plan_kernel(
    query_start,
    positions,
    counts,
    items,
    decode_start,
    prefill_sequences,
    prefill_start,
    num_sequences,
    most_decode_rows,
    num_partials,
):
    """Grid [S]: program s writes what is sequence s's, and finds its place by adding up those before it.

    A sequence of at most ``most_decode_rows`` rows decodes. All write the same ``counts``."""
    sequence = tl.program_id(0)
    num_decode_rows = 0
    num_prefill_rows = 0
    num_prefill = 0
    decode_before = 0
    prefill_rows_before = 0
    prefill_before = 0
    for first in range(0, num_sequences, SEQUENCES):
        others = first + tl.arange(0, SEQUENCES)
        rows, segments = rows_and_segments(query_start, positions, others, num_sequences)
        is_before = others < sequence
        decodes = tl.where(rows <= most_decode_rows, rows, 0)
        prefills = rows - decodes
        num_decode_rows += tl.sum(decodes, axis=0)
        num_prefill_rows += tl.sum(prefills, axis=0)
        num_prefill += tl.sum((prefills > 0).to(tl.int32), axis=0)
        decode_before += tl.sum(tl.where(is_before, decodes, 0), axis=0)
        prefill_rows_before += tl.sum(tl.where(is_before, prefills, 0), axis=0)
        prefill_before += tl.sum((is_before & (prefills > 0)).to(tl.int32), axis=0)
    # As many parts as there is room for partial results of every row.
    most_parts = tl.maximum(num_partials // tl.maximum(num_decode_rows, 1), 1)
    num_items = 0
    items_before = 0
    for first in range(0, num_sequences, SEQUENCES):
        others = first + tl.arange(0, SEQUENCES)
        rows, segments = rows_and_segments(query_start, positions, others, num_sequences)
        parts = tl.where(rows <= most_decode_rows, tl.minimum(segments, most_parts), 0)
        num_items += tl.sum(parts, axis=0)
        items_before += tl.sum(tl.where(others < sequence, parts, 0), axis=0)
    own_rows, own_segments = rows_and_segments(query_start, positions, sequence, num_sequences)
    tl.store(counts, num_items)
    tl.store(counts + 1, most_parts)
    tl.store(counts + 2, num_prefill)
    tl.store(counts + 3, num_prefill_rows)
    is_decode = (own_rows > 0) & (own_rows <= most_decode_rows)
    tl.store(decode_start + sequence, tl.where(is_decode, decode_before, -1))
    if is_decode:
        own_parts = tl.minimum(own_segments, most_parts)
        for first in range(0, own_parts, ITEMS):
            parts = first + tl.arange(0, ITEMS)
            places = items + (items_before + parts) * 2
            tl.store(places, sequence, mask=parts < own_parts)
            tl.store(places + 1, parts, mask=parts < own_parts)
    if own_rows > most_decode_rows:
        tl.store(prefill_sequences + prefill_before, sequence)
        tl.store(prefill_start + prefill_before, prefill_rows_before)
