"""Launches of the log-probability kernels. The most likely ids are found by torch.topk over unique keys, so exactly."""

import torch
import triton
from torch import Tensor

from kernels.ops import Logprobs
from kernels.triton.jit import logprobs as kernels
from kernels.triton.launch import launch
from kernels.triton.sampling_chunks import NUM_WARPS, Chunks, check_logits

KEY_ROWS = 64
"""Rows whose keys, 8 bytes an id, exist at the same time."""
TOP_BLOCK = 128


def token_logprobs(logits: Tensor, ids: Tensor, num_top: int) -> Logprobs:
    """logits f32 [R, V], ids i64 [R]. A row with NaN or +inf, or with −inf alone, gets NaN logprobs."""
    check_logits(logits)
    num_rows, vocab_size = logits.shape
    num_top = min(num_top, vocab_size)
    chunks = Chunks.of(vocab_size)
    partial_largest, partial_sums = (logits.new_empty(num_rows, chunks.count) for _ in range(2))
    partial_ranks = logits.new_empty(num_rows, chunks.count, dtype=torch.int32)
    row_largest, log_totals = logits.new_empty(num_rows), logits.new_empty(num_rows)
    result = Logprobs(
        logits.new_empty(num_rows),
        logits.new_empty(num_rows, dtype=torch.int64),
        logits.new_empty(num_rows, num_top, dtype=torch.int64),
        logits.new_empty(num_rows, num_top),
    )
    launch(
        kernels.summarize,
        (num_rows, chunks.count),
        logits,
        logits.stride(0),
        vocab_size,
        ids,
        partial_largest,
        partial_sums,
        partial_ranks,
        num_warps=NUM_WARPS,
        CHUNK=chunks.size,
    )
    launch(
        kernels.finish,
        (num_rows,),
        logits,
        logits.stride(0),
        ids,
        partial_largest,
        partial_sums,
        partial_ranks,
        result.logprobs,
        result.ranks,
        row_largest,
        log_totals,
        chunks.count,
        num_warps=1,
        CHUNKS=chunks.padded,
    )
    if num_top > 0:
        for first_row in range(0, num_rows, KEY_ROWS):
            _list_most_likely(logits, first_row, chunks, row_largest, log_totals, result)
    return result


def _list_most_likely(
    logits: Tensor, first_row: int, chunks: Chunks, row_largest: Tensor, log_totals: Tensor, result: Logprobs
) -> None:
    num_rows, vocab_size = min(KEY_ROWS, logits.shape[0] - first_row), logits.shape[1]
    num_top = result.top_ids.shape[1]
    keys = logits.new_empty(num_rows, vocab_size, dtype=torch.int64)
    launch(
        kernels.make_keys,
        (num_rows, chunks.count),
        logits,
        logits.stride(0),
        vocab_size,
        keys,
        first_row,
        num_warps=NUM_WARPS,
        CHUNK=chunks.size,
    )
    launch(
        kernels.look_up,
        (num_rows, triton.cdiv(num_top, TOP_BLOCK)),
        logits,
        logits.stride(0),
        keys.topk(num_top).values,
        first_row,
        num_top,
        row_largest,
        log_totals,
        result.top_ids,
        result.top_logprobs,
        num_warps=1,
        BLOCK=TOP_BLOCK,
    )
