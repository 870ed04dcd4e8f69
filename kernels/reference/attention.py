"""Paged attention by the recurrence of design 7.1, one for decode, chunk and prefix hit.

A row's bits follow from its query, its position and the keys and values it sees: tiles of 64 tokens at absolute
multiples of 64 in order, segments of 1,024 kept apart and merged in order, products always [16, D] x [D, 64].
A tile in which a row sees nothing leaves its state as it was, so it makes no difference which tiles are visited.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.ops import AttentionBatch, KVLayout
from kernels.reference.elementwise import exp_nonpositive, tanh, tree_sum
from kernels.reference.linear import LANES, ROWS, round_up
from kernels.reference.memory import decode_heads, view_blocks
from kernels.reference.row_tiles import TILE, RowTiles, group_rows

SEGMENT = 1024


@dataclass(slots=True)
class OnlineSoftmax:
    """Per row: the largest score, the sum of weights and the weighted values, [N, G, r, 1 or D]."""

    largest: Tensor
    total: Tensor
    weighted: Tensor

    @classmethod
    def empty(cls, like: Tensor) -> "OnlineSoftmax":
        """Nothing seen yet, for rows and head size of ``like`` [N, G, r, D]."""
        column = like[..., :1]
        return cls(torch.full_like(column, -math.inf), torch.zeros_like(column), torch.zeros_like(like))

    def first(self, count: int) -> "OnlineSoftmax":
        """A view of the first ``count`` row tiles."""
        return OnlineSoftmax(self.largest[:count], self.total[:count], self.weighted[:count])

    def rescale(self, largest: Tensor, base: Tensor) -> None:
        """Refer the sums to a new maximum."""
        decay = exp_nonpositive(self.largest - base)
        self.total.mul_(decay)
        self.weighted.mul_(decay)
        self.largest.copy_(largest)

    def merge(self, later: "OnlineSoftmax") -> None:
        """Add a later segment."""
        largest = torch.maximum(self.largest, later.largest)
        base = finite_base(largest)
        self.rescale(largest, base)
        later.rescale(largest, base)
        self.total.add_(later.total)
        self.weighted.add_(later.weighted)


def finite_base(largest: Tensor) -> Tensor:
    """What scores are measured from: the maximum, or 0 for a row that has seen nothing (−inf − −inf is NaN)."""
    return largest.masked_fill(largest == -math.inf, 0.0)


def paged_attention(
    q: Tensor,
    cache: Tensor,
    layout: KVLayout,
    batch: AttentionBatch,
    scale: float,
    window: int | None,
    dtype: torch.dtype,
    soft_cap: float | None = None,
) -> Tensor:
    """q [T, H, D] → ``dtype`` [T, H, D]. Rows outside ``batch.query_start`` stay 0."""
    num_kv_heads, head_size = layout.num_kv_heads, layout.head_size
    result = torch.zeros(q.shape, dtype=dtype, device=q.device)
    by_kv_head = (q.shape[0], num_kv_heads, q.shape[1] // num_kv_heads, head_size)
    grouped = q.reshape(by_kv_head).transpose(1, 2)  # [T, heads per KV head, G, D]
    tiles = group_rows(batch, by_kv_head[2], window)
    if tiles is None:
        return result
    queries = q.new_zeros(len(tiles.last), num_kv_heads, ROWS, round_up(head_size, LANES), dtype=torch.float32)
    queries[:, :, : tiles.num_rows, :head_size] = grouped[tiles.tokens, tiles.heads].transpose(1, 2)
    state = attend(queries, cache, layout, batch, tiles, scale, window, soft_cap)
    # A skipped tile leaves −0 where a visited one leaves +0; adding 0 makes both +0.
    output = state.weighted.div_(state.total).add_(0.0)[..., :head_size].transpose(1, 2)
    is_real = tiles.positions >= 0
    grouped_result = result.view(by_kv_head).transpose(1, 2)
    grouped_result[tiles.tokens[is_real], tiles.heads[is_real]] = output[is_real].to(dtype)
    return result


def attend(
    queries: Tensor,
    cache: Tensor,
    layout: KVLayout,
    batch: AttentionBatch,
    tiles: RowTiles,
    scale: float,
    window: int | None,
    soft_cap: float | None,
) -> OnlineSoftmax:
    """Visit the KV tiles in order. Row tiles are sorted so that those still active are the first ones."""
    like = queries[:, :, : tiles.num_rows]
    state, segment = OnlineSoftmax.empty(like), OnlineSoftmax.empty(like)
    for tile in range(tiles.first, tiles.last[0] + 1):
        if tile * TILE % SEGMENT == 0 and tile > tiles.first:
            state.merge(segment)
            segment = OnlineSoftmax.empty(like)
        count = tiles.count_active(tile)
        keys, values = gather_tile(cache, layout, batch.block_tables, tiles, tile, count, queries.shape[-1])
        kv_positions = torch.arange(tile * TILE, (tile + 1) * TILE, device=queries.device)
        positions = tiles.positions[:count, None, :, None]
        is_visible = kv_positions <= positions
        if window is not None:
            is_visible &= kv_positions > positions - window
        scores = multiply(queries[:count], keys.transpose(2, 3))[:, :, : tiles.num_rows].mul(scale)
        if soft_cap is not None:
            scores = tanh(scores.div_(soft_cap)).mul_(soft_cap)
        scores.masked_fill_(~is_visible, -math.inf)
        accumulate(segment.first(count), scores, values, is_visible)
    state.merge(segment)
    return state


def accumulate(state: OnlineSoftmax, scores: Tensor, values: Tensor, is_visible: Tensor) -> None:
    """One step of the online softmax: scores [n, G, r, 64], values [n, G, 64, D]."""
    num_rows = scores.shape[2]
    largest = torch.maximum(state.largest, scores.amax(dim=-1, keepdim=True))
    base = finite_base(largest)
    state.rescale(largest, base)
    weights = values.new_zeros(*values.shape[:2], ROWS, TILE)
    weights[:, :, :num_rows] = exp_nonpositive(scores.sub_(base))
    weighted = multiply(weights, values)
    if not bool(weighted.abs().amax() < math.inf):
        weighted = multiply_visible(weights, values, is_visible)
    state.weighted.add_(weighted[:, :, :num_rows])
    state.total.add_(tree_sum(weights[:, :, :num_rows]))


def multiply_visible(weights: Tensor, values: Tensor, is_visible: Tensor) -> Tensor:
    """``weights`` times ``values`` where some are not finite: NaN for the rows that see such a value, and as if it
    were 0 for the others (0 · NaN would be NaN)."""
    weighted = multiply(weights, values.nan_to_num(0.0, 0.0, 0.0))
    sees = torch.zeros_like(weights)
    sees[:, :, : is_visible.shape[2]] = is_visible.to(torch.float32)
    return weighted.masked_fill_(multiply(sees, (~values.isfinite()).to(torch.float32)) > 0, math.nan)


def multiply(first: Tensor, second: Tensor) -> Tensor:
    """Batched products of one fixed size, [n, G, 16, K] x [n, G, K, N]."""
    product = torch.bmm(first.flatten(0, 1), second.flatten(0, 1))
    return product.view(*first.shape[:2], *product.shape[1:])


def gather_tile(
    cache: Tensor,
    layout: KVLayout,
    block_tables: Tensor,
    tiles: RowTiles,
    tile: int,
    count: int,
    padded_size: int,
) -> tuple[Tensor, Tensor]:
    """Keys and values of one KV tile for the first ``count`` row tiles, float32 [count, G, 64, padded D] each.

    Table entries that no row of the sequence sees are not followed: they may name any block, or none.
    """
    block_size, num_kv_heads, head_size = layout.block_size, layout.num_kv_heads, layout.head_size
    unit = math.gcd(block_size, TILE)
    sequences = tiles.sequences[:count]
    inverse = None
    if count > len(block_tables):  # gather once what several row tiles read
        sequences, inverse = torch.unique(sequences, return_inverse=True)
    starts = torch.arange(tile * TILE, (tile + 1) * TILE, unit, device=cache.device)
    is_needed = (starts <= tiles.last_seen[sequences, None]) & (starts + unit > tiles.first_seen[sequences, None])
    columns = (starts // block_size).clamp(max=block_tables.shape[1] - 1)
    ids = block_tables[sequences[:, None], columns].to(torch.int64).masked_fill_(~is_needed, 0)
    parts = view_blocks(cache, layout).view(-1, unit, num_kv_heads, layout.bytes_per_head)  # block, K or V, part
    keys = ids * (2 * block_size // unit) + starts % block_size // unit
    chosen = torch.stack([keys, keys + block_size // unit])
    units = decode_heads(parts.index_select(0, chosen.flatten()), layout)
    units = units.view(*chosen.shape, unit, num_kv_heads, head_size)
    gathered = cache.new_empty(2, len(sequences), num_kv_heads, TILE, padded_size, dtype=torch.float32)
    gathered[..., head_size:] = 0.0
    by_unit = gathered.view(2, len(sequences), num_kv_heads, -1, unit, padded_size)
    by_unit[..., :head_size] = units.permute(0, 1, 4, 2, 3, 5)
    if inverse is not None:
        gathered = gathered.index_select(1, inverse)
    return gathered[0], gathered[1]
