"""Gumbel-max in two steps: the best of each chunk of a row, then the best of those (design 7.4)."""

import triton
import triton.language as tl

from kernels.triton.jit import arithmetic
from kernels.triton.jit.adjustments import NEGATIVE_INFINITY, load_logits
from kernels.triton.jit.filters import asks_filters, largest_of_row, scale
from kernels.triton.jit.philox import log_exponential, token_words

NO_ID: tl.constexpr = tl.constexpr(0x7FFFFFFF)


@triton.jit(do_not_specialize=["temperature", "seeds", "positions", "streams", "top_k", "top_p", "min_p"])
def find_best(
    logits,
    logits_stride,
    adjusted,
    is_adjusted,
    num_ids,
    vocab_size,
    temperature,
    seeds,
    positions,
    streams,
    top_k,
    top_p,
    min_p,
    partial_largest,
    floors,
    best_scores,
    best_ids,
    HAS_ADJUSTED: tl.constexpr,
    DRAWS: tl.constexpr,
    FILTERS: tl.constexpr,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
):
    """The best score and the lowest id that has it, of each chunk; NO_ID where none is kept, −1 where a raw logit is
    NaN or +inf."""
    row, chunk, num_chunks = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    ids = chunk * CHUNK + tl.arange(0, CHUNK)
    start = row.to(tl.int64) * logits_stride
    raw = tl.load(logits + start + ids, mask=ids < vocab_size, other=0.0)
    is_broken = tl.max(((raw != raw) | (raw == float("inf"))).to(tl.int32), axis=0)
    if HAS_ADJUSTED:
        scores = load_logits(logits, logits_stride, adjusted, is_adjusted, row, ids, num_ids, HAS_ADJUSTED)
    else:
        scores = tl.where((ids < num_ids) & (raw == raw), raw, NEGATIVE_INFINITY)
    if DRAWS:
        heat = tl.load(temperature + row)
        if heat > 0.0:
            scores = scale(scores, heat)
            if FILTERS:
                least_weight = tl.load(min_p + row)
                if asks_filters(top_k, top_p, min_p, row):
                    scores = tl.where(scores >= tl.load(floors + row), scores, NEGATIVE_INFINITY)
                    if least_weight > 0.0:
                        largest = largest_of_row(partial_largest, row, num_chunks, CHUNKS)
                        weights = arithmetic.exp_nonpositive(scores - largest)
                        scores = tl.where(weights >= least_weight, scores, NEGATIVE_INFINITY)
            # Of filtered rows most chunks have nothing left, and noise is most of the work.
            if tl.max(scores, axis=0) > NEGATIVE_INFINITY:
                position, stream, seed = tl.load(positions + row), tl.load(streams + row), tl.load(seeds + row)
                noise = log_exponential(token_words(chunk * CHUNK, position, stream, seed, CHUNK))
                scores = scores - noise
    best = tl.max(scores, axis=0)
    best_id = tl.min(tl.where((scores == best) & (scores > NEGATIVE_INFINITY), ids, NO_ID), axis=0)
    place = row * num_chunks + chunk
    tl.store(best_scores + place, best)
    tl.store(best_ids + place, tl.where(is_broken != 0, -1, best_id))


@triton.jit
def choose_tokens(best_scores, best_ids, token_ids, is_valid, num_chunks, CHUNKS: tl.constexpr):
    """One program a row: the token, lowest id first; 0 where the row is broken or nothing is kept."""
    row = tl.program_id(0)
    chunks = tl.arange(0, CHUNKS)
    places = row * num_chunks + chunks
    scores = tl.load(best_scores + places, mask=chunks < num_chunks, other=NEGATIVE_INFINITY)
    ids = tl.load(best_ids + places, mask=chunks < num_chunks, other=NO_ID)
    best = tl.max(scores, axis=0)
    token = tl.min(tl.where(scores == best, ids, NO_ID), axis=0)
    is_sound = (tl.min(ids, axis=0) >= 0) & (best > NEGATIVE_INFINITY)
    tl.store(token_ids + row, tl.where(is_sound, token, 0).to(tl.int64))
    tl.store(is_valid + row, is_sound.to(tl.uint8))
