"""Launches of the kernels that find what top_k and top_p keep."""

import torch
from torch import Tensor

from kernels.ops import SampleRows
from kernels.triton.jit import filters as kernels
from kernels.triton.launch import launch
from kernels.triton.sampling_adjustments import LogitsSource
from kernels.triton.sampling_chunks import NUM_WARPS, Chunks

LIST_BLOCK = 2048


def find_floors(source: LogitsSource, rows: SampleRows, chunks: Chunks) -> tuple[Tensor, Tensor]:
    """Of logits over temperature: the largest of each chunk f32 [R, chunks], of filtered rows alone, and the least that
    top_k and top_p keep f32 [R]."""
    logits = source.logits
    num_rows = logits.shape[0]
    grid = num_rows, chunks.count
    largest = logits.new_empty(num_rows, chunks.count)
    masses = logits.new_empty(num_rows, chunks.count, kernels.NUM_EDGES.value, dtype=torch.int64)
    lists = logits.new_empty(num_rows, source.num_ids)
    lengths = logits.new_empty(num_rows, dtype=torch.int32)
    totals = logits.new_empty(num_rows, dtype=torch.int64)
    edges, floors = logits.new_empty(num_rows), logits.new_empty(num_rows)
    shape = {"HAS_ADJUSTED": source.has_adjusted, "CHUNK": chunks.size}
    wanted = rows.temperature, rows.top_k, rows.top_p
    launch(
        kernels.find_largest,
        grid,
        *source.arguments,
        *wanted,
        rows.min_p,
        largest,
        lengths,
        num_warps=NUM_WARPS,
        **shape,
    )
    launch(
        kernels.weigh,
        grid,
        *source.arguments,
        *wanted,
        largest,
        masses,
        num_warps=NUM_WARPS,
        CHUNKS=chunks.padded,
        **shape,
    )
    launch(
        kernels.collect,
        grid,
        *source.arguments,
        *wanted,
        largest,
        masses,
        lists,
        lengths,
        edges,
        totals,
        num_warps=NUM_WARPS,
        CHUNKS=chunks.padded,
        **shape,
    )
    launch(
        kernels.find_floor,
        (num_rows,),
        source.num_ids,
        *wanted,
        largest,
        lists,
        lengths,
        edges,
        totals,
        floors,
        chunks.count,
        num_warps=NUM_WARPS,
        BLOCK=min(LIST_BLOCK, chunks.size),
        CHUNKS=chunks.padded,
    )
    return largest, floors
