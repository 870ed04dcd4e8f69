"""Log-softmax of raw logits in two steps, chunks, then rows: the vocabulary alone decides the order of sums."""

import triton
import triton.language as tl

from kernels.triton.jit import arithmetic
from kernels.triton.jit.adjustments import NEGATIVE_INFINITY
from kernels.triton.jit.filters import ordered_key

MOST_ID: tl.constexpr = tl.constexpr(0x7FFFFFFF)  # no id has a bit beyond: what it inverts falls as ids rise


@triton.jit(do_not_specialize=["ids"])
def summarize(
    logits,
    logits_stride,
    vocab_size,
    ids,
    partial_largest,
    partial_sums,
    partial_ranks,
    CHUNK: tl.constexpr,
):
    """Of each chunk: the largest logit, the sum of exponentials relative to it, and how many exceed the row's id's. The
    sum is NaN where a logit is NaN or +inf."""
    row, chunk, num_chunks = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    places = chunk * CHUNK + tl.arange(0, CHUNK)
    start = logits + row.to(tl.int64) * logits_stride
    raw = tl.load(start + places, mask=places < vocab_size, other=NEGATIVE_INFINITY)
    chosen = tl.load(start + tl.load(ids + row))
    is_broken = (raw != raw) | (raw == float("inf"))
    values = tl.where(is_broken, NEGATIVE_INFINITY, raw)
    largest = tl.max(values, axis=0)
    weights = arithmetic.exp_nonpositive(values - tl.where(largest > NEGATIVE_INFINITY, largest, 0.0))
    total = tl.sum(weights, axis=0)
    total = tl.where(tl.max(is_broken.to(tl.int32), axis=0) != 0, float("nan"), total)
    place = row * num_chunks + chunk
    tl.store(partial_largest + place, largest)
    tl.store(partial_sums + place, total)
    tl.store(partial_ranks + place, tl.sum((raw > chosen).to(tl.int32), axis=0))


@triton.jit(do_not_specialize=["ids"])
def finish(
    logits,
    logits_stride,
    ids,
    partial_largest,
    partial_sums,
    partial_ranks,
    logprobs,
    ranks,
    row_largest,
    log_totals,
    num_chunks,
    CHUNKS: tl.constexpr,
):
    """One program a row. What is subtracted from logits stays in ``row_largest`` and ``log_totals``."""
    row = tl.program_id(0)
    chunks = tl.arange(0, CHUNKS)
    places, is_chunk = row * num_chunks + chunks, chunks < num_chunks
    parts = tl.load(partial_largest + places, mask=is_chunk, other=NEGATIVE_INFINITY)
    sums = tl.load(partial_sums + places, mask=is_chunk, other=0.0)
    rank = 1 + tl.sum(tl.load(partial_ranks + places, mask=is_chunk, other=0), axis=0)
    largest = tl.max(parts, axis=0)
    is_sound = (largest > NEGATIVE_INFINITY) & (tl.max((sums != sums).to(tl.int32), axis=0) == 0)
    largest = tl.where(is_sound, largest, 0.0)
    shares = arithmetic.exp_nonpositive(tl.where(is_sound, parts, 0.0) - largest)
    # A sound row's total is at least 1.
    total = tl.sum(tl.where(is_sound, sums, 1.0) * shares, axis=0)
    log_total = tl.where(is_sound, arithmetic.log(total), float("nan"))
    chosen = tl.load(logits + row.to(tl.int64) * logits_stride + tl.load(ids + row))
    tl.store(logprobs + row, (chosen - largest) - log_total)
    tl.store(ranks + row, rank.to(tl.int64))
    tl.store(row_largest + row, largest)
    tl.store(log_totals + row, log_total)


@triton.jit(do_not_specialize=["first_row"])
def make_keys(logits, logits_stride, vocab_size, keys, first_row, CHUNK: tl.constexpr):
    """i64 [rows, V] in the order of logits, the lower id larger among equals; NaN counts as −inf."""
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    places = chunk * CHUNK + tl.arange(0, CHUNK)
    is_id = places < vocab_size
    raw = tl.load(logits + (row + first_row) * logits_stride + places, mask=is_id, other=0.0)
    key = ordered_key(tl.where(raw == raw, raw, NEGATIVE_INFINITY)).to(tl.int64)
    tl.store(keys + row * vocab_size + places, (key << 32) | (places ^ MOST_ID).to(tl.int64), mask=is_id)


@triton.jit(do_not_specialize=["first_row", "num_top"])
def look_up(
    logits, logits_stride, keys, first_row, num_top, row_largest, log_totals, top_ids, top_logprobs, BLOCK: tl.constexpr
):
    """The ids that ``keys`` i64 [rows, num_top] name, and their log-probabilities."""
    row = tl.program_id(0).to(tl.int64)
    places = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_top = places < num_top
    key = tl.load(keys + row * num_top + places, mask=is_top, other=0)
    ids = (key & 0xFFFFFFFF) ^ MOST_ID
    row += first_row
    values = tl.load(logits + row * logits_stride + ids, mask=is_top, other=0.0)
    values = (values - tl.load(row_largest + row)) - tl.load(log_totals + row)
    tl.store(top_ids + row * num_top + places, ids, mask=is_top)
    tl.store(top_logprobs + row * num_top + places, values, mask=is_top)
