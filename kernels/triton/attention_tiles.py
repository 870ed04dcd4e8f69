"""How attention's kernels are cut for a GPU: by its compute capability, the size of a head and the dtype of products.

The numbers were chosen by calculation, of registers, shared memory and what the matrix unit takes; none has been timed.
"""

from dataclasses import dataclass, replace

from triton import next_power_of_2

from kernels.triton.target import Target

LEAST_ROWS = 16  # of a product
MOST_DECODE_TILE = 64
MOST_HEAD_SIZE = 256
CAREFUL_ROWS = 64  # what looks at every value takes more registers
SCALED_STAGES = 2


@dataclass(frozen=True, slots=True)
class RowTile:
    """Rows of queries, warps and pipeline stages of a program."""

    rows: int
    warps: int
    stages: int


@dataclass(frozen=True, slots=True)
class AttentionTiles:
    """``programs``: of decode, at a time on a multiprocessor."""

    prefill: RowTile
    decode: RowTile
    programs: int

    @property
    def careful(self) -> RowTile:
        """Of prefill's tiles that are done again: a divisor of their rows. What happens rarely needs no pipeline."""
        return replace(self.prefill, rows=min(self.prefill.rows, CAREFUL_ROWS), stages=1)


# {compute capability: {lanes of a head, at most: tiles}}; decode's rows are as many as a group of heads needs
BY_CAPABILITY: dict[int, dict[int, AttentionTiles]] = {
    80: {
        64: AttentionTiles(RowTile(128, 8, 3), RowTile(LEAST_ROWS, 8, 3), 2),
        128: AttentionTiles(RowTile(64, 8, 2), RowTile(LEAST_ROWS, 8, 3), 1),
        256: AttentionTiles(RowTile(64, 8, 2), RowTile(LEAST_ROWS, 4, 2), 1),
    },
    90: {
        64: AttentionTiles(RowTile(128, 8, 3), RowTile(LEAST_ROWS, 8, 3), 2),
        128: AttentionTiles(RowTile(128, 8, 3), RowTile(LEAST_ROWS, 8, 3), 1),
        256: AttentionTiles(RowTile(64, 8, 2), RowTile(LEAST_ROWS, 4, 2), 1),
    },
}
# Hopper's matrix unit has other instructions from 64 rows on, which may add in another order, and the rows of a warp
# decide how it adds up weights: where a row is to have the same bits everywhere, all kernels have the same tiles.
INVARIANT = {256: AttentionTiles(RowTile(64, 8, 2), RowTile(64, 8, 2), 1)}
# Without the matrix unit a product takes many registers.
FLOAT32: dict[int, AttentionTiles] = {
    64: AttentionTiles(RowTile(16, 8, 2), RowTile(16, 8, 2), 2),
    128: AttentionTiles(RowTile(16, 8, 1), RowTile(16, 8, 1), 1),
    256: AttentionTiles(RowTile(16, 8, 1), RowTile(16, 8, 1), 1),
}


def find_tiles(
    target: Target, head_lanes: int, heads_per_kv_head: int, *, is_float32: bool, is_scaled: bool
) -> AttentionTiles:
    """Those of the newest capability that is not newer than the target's. Raises ValueError for heads that are too
    large."""
    if is_float32:
        by_lanes = FLOAT32
    elif target.batch_invariant:
        by_lanes = INVARIANT
    else:
        by_lanes = BY_CAPABILITY[max(each for each in BY_CAPABILITY if each <= target.capability)]
    tiles = next((tiles for lanes, tiles in by_lanes.items() if head_lanes <= lanes), None)
    if tiles is None:
        raise ValueError(f"attention with heads of more than {max(by_lanes)} entries")
    if is_scaled:  # scales take registers, and numbers of a byte half of the shared memory
        stages = SCALED_STAGES if target.capability >= 90 else 1
        tiles = replace(
            tiles, prefill=replace(tiles.prefill, rows=min(tiles.prefill.rows, CAREFUL_ROWS), stages=stages)
        )
    if is_float32 or target.batch_invariant:
        return tiles
    rows = min(max(LEAST_ROWS, next_power_of_2(heads_per_kv_head)), MOST_DECODE_TILE)
    return replace(tiles, decode=replace(tiles.decode, rows=rows))
