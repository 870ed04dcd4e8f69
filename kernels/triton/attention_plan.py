"""What attention's launches of a step share: found on the device by one kernel, before the first layer.

Knows the rows of a batch and the width of its block tables; neither heads nor windows, which differ by layer.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from triton import cdiv

from kernels.ops import AttentionBatch
from kernels.triton.jit.attention_plan import plan_kernel
from kernels.triton.launch import launch

MOST_DECODE_ROWS = 8
"""A sequence of more rows in a step, drafts included, is computed by tiles of rows."""
MOST_PARTIALS = 2048
"""States of parts of a context that there is room for, each of a row's heads: 34 MB for 32 heads of size 128."""
BLOCKS_PER_SEGMENT = 8  # at least: blocks have at most 128 tokens


@dataclass(frozen=True, slots=True)
class AttentionWork:
    """``counts`` i32 [4]: items, the most parts of a sequence, prefilling sequences, their rows. ``items`` i32
    [≥ items, 2]: sequence and part. ``decode_start`` i32 [S]: a decoding sequence's first row among those of all
    decoding ones, −1 for others. ``prefill_sequences``, ``prefill_start`` i32 [S]: the prefilling ones and the first
    row of each among theirs.

    A sequence of at most ``most_decode_rows`` rows decodes. ``num_partials``: states of parts, at most.
    """

    counts: Tensor
    items: Tensor
    decode_start: Tensor
    prefill_sequences: Tensor
    prefill_start: Tensor
    most_decode_rows: int
    num_partials: int


def plan_attention(batch: AttentionBatch) -> AttentionBatch:
    """The batch with its ``AttentionWork``."""
    num_rows, num_sequences = len(batch.positions), len(batch.block_tables)
    # As many sequences as rows is a step of decodes alone: nothing is left for tiles of rows, if one has more or not.
    most_decode_rows = num_rows if num_rows <= num_sequences else MOST_DECODE_ROWS
    most_segments = cdiv(batch.block_tables.shape[1], BLOCKS_PER_SEGMENT)
    num_partials = min(MOST_PARTIALS, min(num_rows, num_sequences * most_decode_rows) * most_segments)

    def integers(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.int32, device=batch.query_start.device)

    work = AttentionWork(
        counts=integers(4),
        items=integers(max(num_partials, num_sequences), 2),
        decode_start=integers(num_sequences),
        prefill_sequences=integers(num_sequences),
        prefill_start=integers(num_sequences),
        most_decode_rows=most_decode_rows,
        num_partials=num_partials,
    )
    launch(
        plan_kernel,
        (num_sequences,),
        batch.query_start,
        batch.positions,
        work.counts,
        work.items,
        work.decode_start,
        work.prefill_sequences,
        work.prefill_start,
        num_sequences,
        most_decode_rows,
        num_partials,
    )
    return replace(batch, work=work)
