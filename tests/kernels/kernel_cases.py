"""Builders for the kernels' structured arguments: sampled rows and paged sequences."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kernels.ops import AttentionBatch, KVLayout, Ops, SampleRows, load

COLUMNS: dict[str, tuple[torch.dtype, float]] = {
    "slots": (torch.int64, 0),
    "positions": (torch.int64, 0),
    "num_prompt_tokens": (torch.int64, 0),
    "streams": (torch.int64, 0),
    "seeds": (torch.int64, 0),
    "temperature": (torch.float32, 0.0),
    "top_k": (torch.int64, 0),
    "top_p": (torch.float32, 1.0),
    "min_p": (torch.float32, 0.0),
    "presence_penalty": (torch.float32, 0.0),
    "frequency_penalty": (torch.float32, 0.0),
    "repetition_penalty": (torch.float32, 1.0),
}


def is_interpreted(ops: Ops) -> bool:
    """Whether Triton's interpreter runs the kernels: then tests of many rows take fewer."""
    return ops.isa.startswith("interpreter")


def ids(values: list[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int64)


def offsets(lists: list[list[Any]]) -> Tensor:
    """Where each list starts in their concatenation, and its end."""
    return torch.tensor([0] + [len(part) for part in lists], dtype=torch.int64).cumsum(0)


def pack_bits(allowed: list[int], vocab_size: int) -> Tensor:
    words = [0] * ((vocab_size + 31) // 32)
    for token in allowed:
        words[token // 32] |= 1 << (token % 32)
    return torch.tensor([word - 2**32 if word >= 2**31 else word for word in words], dtype=torch.int32)


def make_rows(requests: list[dict[str, Any]], vocab_size: int, **extra: Any) -> SampleRows:
    """Rows from dictionaries of the fields that differ from the defaults. Sparse ones: ``bias`` {id: value}, ``bans``,
    ``allowed``, ``bad_words`` [[ids]], ``bitmask`` [allowed ids]."""
    columns: dict[str, Any] = {
        name: torch.tensor([request.get(name, default) for request in requests], dtype=dtype)
        for name, (dtype, default) in COLUMNS.items()
    }
    bias = [list(request.get("bias", {}).items()) for request in requests]
    bans = [request.get("bans", []) for request in requests]
    allowed = [request.get("allowed", []) for request in requests]
    words = [request.get("bad_words", []) for request in requests]
    masks = [request["bitmask"] for request in requests if request.get("bitmask") is not None]
    has_mask = [request.get("bitmask") is not None for request in requests]
    all_words: list[list[int]] = sum(words, [])
    return SampleRows(
        **columns,
        bias_offsets=offsets(bias),
        bias_ids=ids([token for part in bias for token, _ in part]),
        bias_values=torch.tensor([value for part in bias for _, value in part], dtype=torch.float32),
        ban_offsets=offsets(bans),
        ban_ids=ids(sum(bans, [])),
        allowed_offsets=offsets(allowed),
        allowed_ids=ids(sum(allowed, [])),
        bad_word_row_offsets=offsets(words),
        bad_word_offsets=offsets(all_words),
        bad_word_ids=ids(sum(all_words, [])),
        bitmask_rows=ids([sum(has_mask[:row]) if has else -1 for row, has in enumerate(has_mask)]),
        bitmask=torch.stack([pack_bits(mask, vocab_size) for mask in masks]) if masks else None,
        num_token_ids=extra.get("num_token_ids", vocab_size),
        num_logprobs=extra.get("num_logprobs", -1),
    )


@dataclass
class PagedSequence:
    """Keys and values [L, G, D] of one sequence, as the cache's dtype holds them, and queries [L, H, D]."""

    q: Tensor
    k: Tensor
    v: Tensor


def random_sequence(
    seed: int, length: int, num_heads: int, num_kv_heads: int, head_size: int, dtype: torch.dtype
) -> PagedSequence:
    generator = torch.Generator().manual_seed(seed)
    shapes = [(length, num_heads, head_size)] + [(length, num_kv_heads, head_size)] * 2
    q, k, v = (torch.randn(shape, generator=generator) for shape in shapes)
    return PagedSequence((q * 2).to(dtype), k.to(dtype), v.to(dtype))


def write_kv(ops: Any, k: Tensor, v: Tensor, cache: Tensor, layout: KVLayout, slots: Tensor) -> None:
    """``ops.write_kv``. Triton's interpreter would take its time for each row: there the reference writes, and what it
    puts after each head, a scale, is moved to the end of the block, where Triton's layout has them."""
    if not is_interpreted(ops):
        ops.write_kv(k, v, cache, layout, slots)
        return
    blocks, offsets = slots // layout.block_size, slots % layout.block_size
    heads_shape = (2, layout.block_size, layout.num_kv_heads)
    plain = torch.zeros_like(cache)
    load("reference").write_kv(k, v, plain, layout, slots)
    heads = plain.view(-1, *heads_shape, layout.bytes_per_head)[blocks, :, offsets]
    size = layout.head_size * layout.dtype.itemsize
    num_values = 2 * layout.block_size * layout.num_kv_heads * size
    cache[:, :num_values].view(-1, *heads_shape, size)[blocks, :, offsets] = heads[..., :size]
    if layout.is_scaled:
        cache[:, num_values:].view(-1, *heads_shape, 4)[blocks, :, offsets] = heads[..., size:]


def run_attention(
    ops: Any,
    chunks: list[tuple[PagedSequence, int, int]],
    block_size: int,
    window: int | None = None,
    seed: int = 0,
    kv_dtype: torch.dtype | None = None,
    soft_cap: float | None = None,
) -> list[Tensor]:
    """One call for rows start … end − 1 of each sequence; everything that may not be read is NaN, or names no block.

    Written: the positions from the first that a row may see to the last row's. ``kv_dtype``: of the cache, the keys'
    own unless given.
    """
    first = chunks[0][0]
    layout = ops.kv_layout(block_size, first.k.shape[1], first.k.shape[2], kv_dtype or first.k.dtype)
    blocks_each = [-(-end // block_size) for _, _, end in chunks]
    num_blocks = sum(blocks_each) + 2
    cache = torch.full((num_blocks, layout.bytes_per_block), 255, dtype=torch.uint8)  # NaN in every float format
    free = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(seed)).tolist()
    tables = torch.full((len(chunks), max(blocks_each) + 1), -1, dtype=torch.int32)
    slots = []
    for row, (sequence, start, end) in enumerate(chunks):
        seen = 0 if window is None else max(0, start - window + 1)
        for block in range(seen // block_size, blocks_each[row]):
            tables[row, block] = free.pop()
        positions = torch.arange(seen, end)
        slot = tables[row, positions // block_size].long() * block_size + positions % block_size
        write_kv(ops, sequence.k[seen:end], sequence.v[seen:end], cache, layout, slot)
        slots.append(slot[start - seen :])
    sizes = [end - start for _, start, end in chunks]
    batch = AttentionBatch(
        query_start=torch.tensor([0, *sizes]).cumsum(0).to(torch.int32),
        block_tables=tables,
        positions=torch.cat([torch.arange(start, end) for _, start, end in chunks]),
        kv_slots=torch.cat(slots),
    )
    q = torch.cat([sequence.q[start:end] for sequence, start, end in chunks])
    result = ops.paged_attention(q, cache, layout, batch, first.k.shape[2] ** -0.5, window, q.dtype, soft_cap)
    assert result.dtype == q.dtype
    assert result.shape == q.shape
    return list(result.split(sizes))
