"""Moving data without arithmetic: KV into blocks, blocks to blocks, token ids in and out of the slot table."""

import torch
from torch import Tensor

from kernels.ops import KVLayout


def view_blocks(cache: Tensor, layout: KVLayout) -> Tensor:
    """cache u8 [B, bytes_per_block] as ``layout.dtype`` [B, 2 (K, V), block_size, G, D], sharing memory."""
    return cache.view(layout.dtype).view(-1, 2, layout.block_size, layout.num_kv_heads, layout.head_size)


def write_kv(k: Tensor, v: Tensor, cache: Tensor, layout: KVLayout, kv_slots: Tensor) -> None:
    """Round k, v [T, G, D] to the layout's dtype and put them at ``kv_slots`` (block · block_size + offset)."""
    blocks = view_blocks(cache, layout)
    block, offset = kv_slots // layout.block_size, kv_slots % layout.block_size
    blocks[block, 0, offset] = k.to(layout.dtype)
    blocks[block, 1, offset] = v.to(layout.dtype)


def copy_blocks(cache: Tensor, sources: Tensor, destinations: Tensor) -> None:
    """cache[destinations] = cache[sources]; indexing copies, so all reads come before all writes."""
    cache[destinations] = cache[sources]


def gather_tokens(tokens: Tensor, slots: Tensor, positions: Tensor) -> Tensor:
    """tokens i32 [slots, L] → i64 [T]."""
    return tokens[slots, positions].to(torch.int64)


def store_tokens(tokens: Tensor, slots: Tensor, positions: Tensor, ids: Tensor) -> None:
    """tokens[slots, positions] = ids, without the rows whose position is outside the table."""
    is_inside = (positions >= 0) & (positions < tokens.shape[1])
    tokens[slots[is_inside], positions[is_inside]] = ids[is_inside].to(tokens.dtype)
