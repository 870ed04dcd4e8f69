"""Paged KV for the native tests: quantization and layout written from their definitions, and attention over chunks."""

import torch
from kernel_cases import PagedSequence
from native_libraries import allocate, run
from torch import Tensor

from kernels.native import attention
from kernels.native.attention import NativeKVLayout
from kernels.native.library import Library
from kernels.ops import AttentionBatch

KV_DTYPES = [torch.float32, torch.bfloat16, torch.int8]
UNIT = 16


def unpack(cache: Tensor, layout: NativeKVLayout) -> tuple[Tensor, Tensor]:
    """K and V of every token in a cache, [B · block_size, G, D] float64: the layout from its description."""
    size, dtype, heads = layout.head_size, layout.dtype, layout.num_kv_heads
    units = cache.view(len(cache), heads, layout.block_size // UNIT, -1)  # [B, G, units, bytes]
    part = UNIT * size * dtype.itemsize
    keys, values = units[..., :part].view(dtype), units[..., part : 2 * part].view(dtype)
    if dtype == torch.float32:
        keys = keys.unflatten(-1, (size, UNIT)).transpose(-1, -2)
        values = values.unflatten(-1, (UNIT, size))
    else:
        keys = keys.unflatten(-1, (size // 2, UNIT, 2)).transpose(-2, -3).flatten(-2)
        values = values.unflatten(-1, (UNIT // 2, size, 2)).transpose(-1, -2).flatten(-3, -2)
    keys, values = keys.double(), values.double()
    if dtype == torch.int8:
        scales = units[..., 2 * part :].view(torch.float32).unflatten(-1, (2, UNIT)).double()
        keys, values = keys * scales[..., 0, :, None], values * scales[..., 1, :, None]
    by_token = (part.permute(0, 2, 3, 1, 4).reshape(-1, heads, size) for part in (keys, values))
    return next(by_token), next(by_token)


def write_kv(library: Library, k: Tensor, v: Tensor, cache: Tensor, layout: NativeKVLayout, slots: Tensor) -> None:
    library.call("octavo_write_kv", attention.prepare_write_kv(k, v, cache, layout, slots))


def attend(
    library: Library,
    chunks: list[tuple[PagedSequence, int, int]],
    kv_dtype: torch.dtype,
    block_size: int,
    window: int | None = None,
    seed: int = 0,
    soft_cap: float | None = None,
) -> list[Tensor]:
    """One call for rows start … end − 1 of each sequence, in the queries' dtype; everything that may not be read is
    NaN, or names no block. Written: the positions from the first that a row may see to the last row's."""
    first = chunks[0][0]
    layout = NativeKVLayout(block_size, first.k.shape[1], first.k.shape[2], kv_dtype)
    blocks_each = [-(-end // block_size) for _, _, end in chunks]
    num_blocks = sum(blocks_each) + 2
    cache = torch.full((num_blocks, layout.bytes_per_block), 255, dtype=torch.uint8)  # NaN in every float format
    free = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(seed)).tolist()
    tables = torch.full((len(chunks), max(blocks_each) + 1), -1, dtype=torch.int32)
    for row, (sequence, start, end) in enumerate(chunks):
        seen = 0 if window is None else max(0, start - window + 1)
        for block in range(seen // block_size, blocks_each[row]):
            tables[row, block] = free.pop()
        positions = torch.arange(seen, end)
        slots = tables[row, positions // block_size].long() * block_size + positions % block_size
        write_kv(library, sequence.k[seen:end], sequence.v[seen:end], cache, layout, slots)
    sizes = [end - start for _, start, end in chunks]
    positions = torch.cat([torch.arange(start, end) for _, start, end in chunks])
    batch = AttentionBatch(torch.tensor([0, *sizes]).cumsum(0).to(torch.int32), tables, positions, positions)
    q = torch.cat([sequence.q[start:end] for sequence, start, end in chunks])
    result = run_attention(library, q, cache, layout, batch, window, soft_cap=soft_cap)
    return list(result.split(sizes))


def run_attention(
    library: Library,
    q: Tensor,
    cache: Tensor,
    layout: NativeKVLayout,
    batch: AttentionBatch,
    window: int | None = None,
    dtype: torch.dtype | None = None,
    soft_cap: float | None = None,
) -> Tensor:
    """``dtype``: of the result, the queries' unless given."""
    scale = layout.head_size**-0.5
    prepared = attention.prepare_paged_attention(
        q, cache, layout, batch, scale, window, dtype or q.dtype, allocate, soft_cap
    )
    return run(library, "octavo_paged_attention", prepared)
