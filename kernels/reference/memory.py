"""Moving data without arithmetic: KV into blocks, blocks to blocks, token ids in and out of the slot table."""

import torch
from torch import Tensor

from kernels.ops import KVLayout

LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
"""What the largest magnitude of a head becomes in a cache with scales."""
SMALLEST_SCALE = 1e-37


def view_blocks(cache: Tensor, layout: KVLayout) -> Tensor:
    """cache u8 [B, bytes_per_block] as u8 [B, 2 (K, V), block_size, G, bytes of a head], sharing memory."""
    return cache.view(-1, 2, layout.block_size, layout.num_kv_heads, layout.bytes_per_head)


def write_kv(k: Tensor, v: Tensor, cache: Tensor, layout: KVLayout, kv_slots: Tensor) -> None:
    """Round k, v [T, G, D] to the layout's dtype and put them at ``kv_slots`` (block · block_size + offset)."""
    blocks = view_blocks(cache, layout)
    block, offset = kv_slots // layout.block_size, kv_slots % layout.block_size
    blocks[block, 0, offset] = encode_heads(k, layout)
    blocks[block, 1, offset] = encode_heads(v, layout)


def encode_heads(heads: Tensor, layout: KVLayout) -> Tensor:
    """[..., D] → u8 [..., bytes of a head]."""
    if not layout.is_scaled:
        return heads.to(layout.dtype).contiguous().view(torch.uint8)
    values, scales = quantize_heads(heads.to(torch.float32), layout.dtype)
    return torch.cat([values.view(torch.uint8), scales.view(torch.uint8)], dim=-1)


def decode_heads(data: Tensor, layout: KVLayout) -> Tensor:
    """What ``encode_heads`` made: u8 [..., bytes of a head], contiguous → float32 [..., D]."""
    if not layout.is_scaled:
        return data.view(layout.dtype).to(torch.float32)
    scales = data[..., layout.head_size :].contiguous().view(torch.float32)
    return data[..., : layout.head_size].view(layout.dtype).to(torch.float32).mul_(scales)


def quantize_heads(heads: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """heads float32 [..., D] as multiples, in ``dtype``, of scales float32 [..., 1]: max|x| / 127 for int8, / 448 for
    fp8 (e4m3). To nearest, ties to even.

    Heads too small to divide by become 0. One that is not finite gets the scale NaN: it spoils whoever sees it.
    """
    scales = heads.abs().amax(dim=-1, keepdim=True) / LARGEST[dtype]
    is_finite = scales.isfinite()
    is_usable = is_finite & (scales >= SMALLEST_SCALE)
    values = torch.where(is_usable, heads / scales, 0.0)
    if dtype == torch.int8:
        values.round_()
    return values.to(dtype), torch.where(is_usable, scales, 0.0).masked_fill_(~is_finite, torch.nan)


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
