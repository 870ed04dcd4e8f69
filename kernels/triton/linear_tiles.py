"""Which tiles a linear layer is cut into on which GPU. Knows sizes alone, no tensor.

The numbers were chosen by calculation and have not been timed. What may change a result's bits (whether a tile has the
64 outputs that wgmma needs, on the interpreter the inputs added at once) never depends on the number of rows.
"""

from dataclasses import dataclass, replace

import triton

from kernels.triton.target import Target

FEWEST_OUTPUTS = 16
WGMMA_OUTPUTS = 64
WGMMA_CAPABILITY = 90
LEAST_STAGES = 4
MOST_STAGES = 7
LEAST_RUN_BYTES = 128  # of a row of the weight at a time
MOST_AT_ONCE = 3
MOST_INPUTS = 256
FEWEST_INPUTS = 16


@dataclass(frozen=True, slots=True)
class Tile:
    """A program's share for up to ``most_rows`` rows: ``outputs`` · ``rows`` results, ``inputs`` of K a step.

    ``num_stages`` 0: as many steps under way as fill the memory of a multiprocessor, for what waits for weights.
    """

    most_rows: int
    outputs: int
    rows: int
    inputs: int
    num_warps: int
    num_stages: int = 0


@dataclass(frozen=True, slots=True)
class LinearTiles:
    """Of one architecture; each kind's tiles are in order of ``most_rows``, the last is for any number.

    ``shared_memory``: bytes a multiprocessor lends to programs. ``own_rows``: up to here our kernel multiplies where a
    library may. ``split_rows``: up to here each segment of K is a program's, and another kernel adds them.
    """

    shared_memory: int
    own_rows: int
    split_rows: int
    bfloat16: tuple[Tile, ...]
    float32: tuple[Tile, ...]
    int8: tuple[Tile, ...]
    fp8: tuple[Tile, ...]


ANY = 1 << 62
DECODE = (Tile(16, 64, 16, 128, 4), Tile(32, 64, 32, 128, 8), Tile(64, 64, 64, 128, 4))
# No matrix unit takes float32: small tiles, whose operands stay in registers.
FLOAT32 = (Tile(16, 64, 16, 16, 4, 3), Tile(ANY, 64, 64, 16, 4, 3))
HOPPER = LinearTiles(
    shared_memory=224 << 10,
    own_rows=64,
    split_rows=256,
    bfloat16=(*DECODE, Tile(256, 64, 128, 64, 4, 4), Tile(1024, 128, 128, 64, 8, 4), Tile(ANY, 128, 256, 64, 8, 4)),
    float32=FLOAT32,
    int8=(*DECODE, Tile(ANY, 128, 64, 64, 8, 4)),
    fp8=(*DECODE, Tile(ANY, 128, 64, 128, 8, 4)),
)
AMPERE = LinearTiles(
    shared_memory=160 << 10,
    own_rows=64,
    split_rows=256,
    bfloat16=(*DECODE, Tile(256, 64, 128, 64, 4, 3), Tile(ANY, 128, 128, 64, 8, 3)),
    float32=FLOAT32,
    int8=(*DECODE, Tile(ANY, 128, 64, 64, 8, 4)),
    fp8=(*DECODE, Tile(ANY, 128, 64, 128, 8, 3)),
)
# A consumer's GPU lends 99 KiB.
OTHERS = replace(
    AMPERE,
    shared_memory=96 << 10,
    bfloat16=(*DECODE, Tile(256, 64, 128, 64, 4, 3), Tile(ANY, 128, 128, 32, 8, 3)),
)
# The interpreter is quickest with large tiles; what it adds up in one step depends on the step's length.
INTERPRETED = (Tile(20, 256, 16, 256, 4, 2), Tile(ANY, 256, 32, 256, 4, 2))
INTERPRETER = LinearTiles(
    shared_memory=224 << 10,
    own_rows=40,
    split_rows=36,
    bfloat16=INTERPRETED,
    float32=INTERPRETED,
    int8=INTERPRETED,
    fp8=INTERPRETED,
)
TILES = {"interpreter": INTERPRETER, 80: AMPERE, 90: HOPPER, 100: HOPPER, 103: HOPPER}


def find_tiles(target: Target) -> LinearTiles:
    """The tiles of a GPU by its name, else its compute capability."""
    return TILES.get(target.name) or TILES.get(target.capability) or OTHERS


def choose_tile(
    target: Target,
    kinds: tuple[Tile, ...],
    *,
    num_rows: int,
    num_outputs: int,
    num_parts: int,
    num_inputs: int,
    may_narrow: bool,
    bytes_per_number: int,
    num_weights: int,
    has_waiting: bool,
) -> Tile:
    """The tile for ``num_rows`` rows of ``num_parts`` sums of ``num_inputs`` inputs each, for ``num_outputs`` outputs.

    ``may_narrow``: few outputs may be cut into smaller tiles, so that every multiprocessor has one, which a matrix
    unit may add up otherwise: so it depends on outputs and parts alone. ``num_weights`` 2: gate and up at once.
    ``has_waiting``: sums of segments meet in the program.
    """
    tile = next(kind for kind in kinds if num_rows <= kind.most_rows)
    if not tile.num_stages and may_narrow:
        while tile.outputs > FEWEST_OUTPUTS and (
            triton.cdiv(num_outputs, tile.outputs) * num_parts * 10 < target.num_multiprocessors * 9
        ):
            tile = replace(tile, outputs=tile.outputs // 2, inputs=min(tile.inputs * 2, MOST_INPUTS))
    inputs = min(tile.inputs, max(triton.next_power_of_2(num_inputs), FEWEST_INPUTS))
    rows = tile.rows
    outputs = tile.outputs
    if num_weights > 1 and rows * outputs > 128 * 128:
        rows //= 2  # two sums are in registers
    if has_waiting and outputs > WGMMA_OUTPUTS:
        outputs //= 2  # as long as one meets another, and their addresses
    tile = replace(tile, inputs=inputs, rows=rows, outputs=outputs)
    if tile.num_stages:
        return tile
    num_programs = triton.cdiv(num_outputs, tile.outputs * num_weights) * num_parts
    at_once = min(triton.cdiv(num_programs, target.num_multiprocessors), MOST_AT_ONCE)
    memory = find_tiles(target).shared_memory // at_once
    input_bytes = (tile.outputs * num_weights + tile.rows) * bytes_per_number
    while tile.inputs * bytes_per_number > LEAST_RUN_BYTES and memory // (input_bytes * tile.inputs) < LEAST_STAGES:
        tile = replace(tile, inputs=tile.inputs // 2)
    num_buffers = memory // (input_bytes * tile.inputs)
    # Where operands pass through registers, the step that is computed needs no buffer.
    has_wgmma = target.capability >= WGMMA_CAPABILITY and tile.outputs >= WGMMA_OUTPUTS
    num_stages = min(num_buffers if has_wgmma else num_buffers + 1, MOST_STAGES, triton.cdiv(num_inputs, tile.inputs))
    return replace(tile, num_stages=max(num_stages, 2))
