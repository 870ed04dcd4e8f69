"""Drawing a token per row (design 7.4): which kernels a step's rows need, in which order.

Looks at no value on the device; what no row asks for, as ``SampleRows.kinds`` says, is not launched.
"""

import torch
from torch import Tensor

from kernels.ops import SampleRows, Samples
from kernels.triton.filters import find_floors
from kernels.triton.jit import sampling as kernels
from kernels.triton.launch import launch
from kernels.triton.logprobs import token_logprobs
from kernels.triton.sampling_adjustments import adjust
from kernels.triton.sampling_chunks import NUM_WARPS, Chunks, check_logits


def sample(logits: Tensor, tokens: Tensor, rows: SampleRows) -> Samples:
    """logits f32 [R, V], not changed; tokens i32 [slots, L]. An invalid row gets token 0. A row that names a bitmask
    where there is none is not masked. Raises ValueError for a layout that the kernels cannot read."""
    check_logits(logits)
    num_rows, vocab_size = logits.shape
    num_ids = min(max(rows.num_token_ids, 0), vocab_size)
    chunks = Chunks.of(vocab_size)
    source = adjust(logits, tokens, rows, num_ids, chunks)
    is_filtered = rows.kinds.draws and rows.kinds.filters
    largest, floors = find_floors(source, rows, chunks) if is_filtered else (logits, logits)
    best_scores = logits.new_empty(num_rows, chunks.count)
    best_ids = logits.new_empty(num_rows, chunks.count, dtype=torch.int32)
    launch(
        kernels.find_best,
        (num_rows, chunks.count),
        *source.arguments,
        vocab_size,
        rows.temperature,
        rows.seeds,
        rows.positions,
        rows.streams,
        rows.top_k,
        rows.top_p,
        rows.min_p,
        largest,
        floors,
        best_scores,
        best_ids,
        num_warps=NUM_WARPS,
        HAS_ADJUSTED=source.has_adjusted,
        DRAWS=rows.kinds.draws,
        FILTERS=is_filtered,
        CHUNK=chunks.size,
        CHUNKS=chunks.padded,
    )
    token_ids = logits.new_empty(num_rows, dtype=torch.int64)
    is_valid = logits.new_empty(num_rows, dtype=torch.bool)
    launch(
        kernels.choose_tokens,
        (num_rows,),
        best_scores,
        best_ids,
        token_ids,
        is_valid.view(torch.uint8),
        chunks.count,
        num_warps=1,
        CHUNKS=chunks.padded,
    )
    wanted = rows.num_logprobs
    return Samples(token_ids, is_valid, token_logprobs(logits, token_ids, wanted) if wanted >= 0 else None)
