"""How the rows of a step are grouped for attention: tiles of up to 16 (token, query head) rows of one sequence.

Grouping is for speed only. Nothing here may change a row's result.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.ops import AttentionBatch
from kernels.reference.linear import ROWS

TILE = 64  # keys per KV tile


@dataclass(frozen=True, slots=True)
class RowTiles:
    """N row tiles of r rows; a row serves a query head of every KV head. Sorted by last KV tile, descending.

    ``sequences`` i64 [N]; ``tokens``, ``heads`` (within a KV head) and ``positions`` i64 [N, r], position −1 for
    padding; ``first_seen``, ``last_seen`` i64 [S]: the positions that rows of a sequence see between them;
    ``first``: the first KV tile any row sees; ``last``: the last KV tile of each row tile.
    """

    sequences: Tensor
    tokens: Tensor
    heads: Tensor
    positions: Tensor
    first_seen: Tensor
    last_seen: Tensor
    num_rows: int
    first: int
    last: list[int]

    def count_active(self, tile: int) -> int:
        """How many row tiles, from the first on, see KV tile ``tile`` or a later one."""
        return sum(last >= tile for last in self.last)


def group_rows(batch: AttentionBatch, heads_per_kv_head: int, window: int | None) -> RowTiles | None:
    """The row tiles of a batch; None without any row."""
    starts = batch.query_start.to(torch.int64)
    num_rows = starts.diff() * heads_per_kv_head
    tiles_per_sequence = (num_rows + ROWS - 1) // ROWS
    num_tiles = int(tiles_per_sequence.sum())
    if num_tiles == 0:
        return None
    all_sequences = torch.arange(len(num_rows), device=starts.device)
    sequences = all_sequences.repeat_interleave(tiles_per_sequence)
    tile_starts = tiles_per_sequence.cumsum(0) - tiles_per_sequence
    index_in_sequence = torch.arange(num_tiles, device=starts.device) - tile_starts[sequences]
    width = min(ROWS, int(num_rows.max()))
    rows = index_in_sequence[:, None] * ROWS + torch.arange(width, device=starts.device)
    is_real = rows < num_rows[sequences, None]
    rows = rows.masked_fill(~is_real, 0)
    tokens = starts[sequences, None] + rows // heads_per_kv_head
    positions = batch.positions[tokens].masked_fill(~is_real, -1)
    last, order = torch.sort(positions.amax(dim=1) // TILE, descending=True, stable=True)
    first_seen, last_seen = seen_range(batch, starts, window)
    return RowTiles(
        sequences=sequences[order],
        tokens=tokens[order],
        heads=(rows % heads_per_kv_head)[order],
        positions=positions[order],
        first_seen=first_seen,
        last_seen=last_seen,
        num_rows=width,
        first=int(first_seen[sequences].min()) // TILE,
        last=last.tolist(),
    )


def seen_range(batch: AttentionBatch, starts: Tensor, window: int | None) -> tuple[Tensor, Tensor]:
    """Per sequence the first and last position its rows see; rows of a sequence are in order of position."""
    has_rows = starts.diff() > 0
    positions = torch.cat([batch.positions, batch.positions.new_zeros(1)])  # so that an empty sequence may index
    last_seen = positions[starts[1:] - 1].masked_fill(~has_rows, -1)
    first_row = positions[starts[:-1]]
    first_seen = torch.zeros_like(last_seen) if window is None else (first_row - window + 1).clamp(min=0)
    return first_seen, last_seen
