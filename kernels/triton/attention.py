"""Paged attention on the GPU: sequences of few rows by segments of their contexts, the others by tiles of rows.

Never waits for the device: how much there is to do is read there (attention_plan).
"""

import math
from dataclasses import dataclass

import torch
import triton.language as tl
from torch import Tensor
from triton import cdiv, next_power_of_2

from kernels.ops import AttentionBatch, KVLayout
from kernels.triton import attention_plan
from kernels.triton.attention_plan import AttentionWork
from kernels.triton.attention_tiles import AttentionTiles, find_tiles
from kernels.triton.jit.attention import decode_kernel, merge_kernel, prefill_kernel
from kernels.triton.kv import scales_start, view_scales, view_values
from kernels.triton.launch import launch
from kernels.triton.target import Target

SEGMENT = 1024
LEAST_LANES = 16  # of a product
MERGE_STAGES = 4


@dataclass(frozen=True, slots=True)
class Call:
    """What the launches of one ``paged_attention`` share. ``window_parts``: segments that a decoding sequence's rows
    may see between them, 0 without a window; ``most_segments``: that a block table has room for."""

    q: Tensor
    values: Tensor
    scales: Tensor
    out: Tensor
    batch: AttentionBatch
    work: AttentionWork
    tiles: AttentionTiles
    num_programs: int
    window_parts: int
    most_segments: int
    factor: float
    cap_factor: float
    heads: dict[str, int]
    source: dict[str, object]


def plan_attention(target: Target, batch: AttentionBatch) -> AttentionBatch:
    """The batch with its ``AttentionWork``; ``target`` makes no difference to it."""
    return attention_plan.plan_attention(batch)


def paged_attention(
    target: Target,
    q: Tensor,
    cache: Tensor,
    layout: KVLayout,
    batch: AttentionBatch,
    scale: float,
    window: int | None,
    dtype: torch.dtype,
    soft_cap: float | None = None,
) -> Tensor:
    """q [T, H, D] → ``dtype`` [T, H, D]. Raises ValueError for a scale or a cap that is not above 0, a window below 1
    and heads of more than 256 entries, TypeError for another backend's plan."""
    out = torch.empty(q.shape, dtype=dtype, device=q.device)
    if len(batch.positions) == 0 or len(batch.block_tables) == 0:
        return out
    if batch.work is None:
        batch = attention_plan.plan_attention(batch)
    call = prepare(target, q, cache, layout, batch, scale, window, out, soft_cap)
    launch_decode(call)
    launch_prefill(call)
    return out


def prepare(
    target: Target,
    q: Tensor,
    cache: Tensor,
    layout: KVLayout,
    batch: AttentionBatch,
    scale: float,
    window: int | None,
    out: Tensor,
    soft_cap: float | None,
) -> Call:
    """What both kernels are told."""
    if not isinstance(batch.work, AttentionWork):
        raise TypeError(f"attention planned by another backend: {type(batch.work).__name__}")
    if not scale > 0 or (soft_cap is not None and not soft_cap > 0) or (window is not None and window < 1):
        raise ValueError(f"attention with scale {scale}, window {window}, soft cap {soft_cap}")
    num_heads, head_size = q.shape[1:]
    head_lanes = max(LEAST_LANES, next_power_of_2(head_size))
    is_float32 = torch.float32 in (q.dtype, layout.dtype)
    tiles = find_tiles(
        target, head_lanes, num_heads // layout.num_kv_heads, is_float32=is_float32, is_scaled=layout.is_scaled
    )
    values, scales = view_values(cache, layout), view_scales(cache, layout)
    tables = batch.block_tables
    most_segments = cdiv(tables.shape[1] * layout.block_size, SEGMENT)
    window_parts = 0
    if window is not None:
        seen = window + batch.work.most_decode_rows - 1
        window_parts = min((seen + SEGMENT - 2) // SEGMENT + 1, most_segments)
    return Call(
        q=q.contiguous(),
        values=values,
        scales=scales,
        out=out,
        batch=batch,
        work=batch.work,
        tiles=tiles,
        num_programs=target.num_multiprocessors * tiles.programs,
        window_parts=window_parts,
        most_segments=most_segments,
        factor=(scale if soft_cap is None else soft_cap) * math.log2(math.e),
        cap_factor=1.0 if soft_cap is None else scale / soft_cap,
        heads={
            "NUM_HEADS": num_heads,
            "NUM_KV_HEADS": layout.num_kv_heads,
            "HEAD_SIZE": head_size,
            "HEAD_LANES": head_lanes,
            "WINDOW": window or 0,
        },
        source={
            "BLOCK_SIZE": layout.block_size,
            "BLOCK_STRIDE": values.stride(0),
            "SCALES_STRIDE": scales.stride(0),
            "SCALES_START": scales_start(layout),
            "HAS_SCALES": layout.is_scaled,
            "HAS_SOFT_CAP": soft_cap is not None,
            "DTYPE": tl.float32 if is_float32 else tl.bfloat16,
        },
    )


def launch_decode(call: Call) -> None:
    """The decoding sequences' rows of the result."""
    work, batch, tile = call.work, call.batch, call.tiles.decode
    num_sequences = len(batch.block_tables)
    num_kv_heads, heads_per_kv_head = call.heads["NUM_KV_HEADS"], call.heads["NUM_HEADS"] // call.heads["NUM_KV_HEADS"]
    window_items = num_sequences * call.window_parts
    most_parts = call.window_parts or call.most_segments
    has_parts = most_parts > 1
    partials = call.q.new_empty(
        work.num_partials if has_parts else 0, call.heads["NUM_HEADS"], call.heads["HEAD_SIZE"] + 2, dtype=torch.float32
    )
    num_sums = 2 * partials[..., 0].numel()
    sums, weighted = partials.view(-1)[:num_sums], partials.view(-1)[num_sums:]
    most_items = window_items or min(len(work.items), num_sequences * call.most_segments)
    launch(
        decode_kernel,
        (min(most_items * num_kv_heads, call.num_programs),),
        call.q,
        call.values,
        call.scales,
        call.out,
        weighted,
        sums,
        batch.query_start,
        batch.positions,
        batch.block_tables,
        work.counts,
        work.items,
        work.decode_start,
        batch.block_tables.stride(0),
        window_items,
        call.window_parts,
        call.factor,
        call.cap_factor,
        **call.heads,
        **call.source,
        HAS_ONE_POSITION=len(batch.positions) <= num_sequences,
        ROWS=tile.rows,
        STAGES=tile.stages,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    if has_parts:
        launch(
            merge_kernel,
            (num_sequences, num_kv_heads),
            call.out,
            weighted,
            sums,
            batch.query_start,
            batch.positions,
            work.counts,
            work.decode_start,
            **call.heads,
            ROWS=next_power_of_2(heads_per_kv_head),
            STAGES=MERGE_STAGES,
            num_warps=4,
        )


def launch_prefill(call: Call) -> None:
    """The other sequences' rows."""
    work, batch, tile = call.work, call.batch, call.tiles.prefill
    num_rows = len(batch.positions)
    num_kv_heads, heads_per_kv_head = call.heads["NUM_KV_HEADS"], call.heads["NUM_HEADS"] // call.heads["NUM_KV_HEADS"]
    most_sequences = min(len(batch.block_tables), num_rows // (work.most_decode_rows + 1))
    if most_sequences == 0:
        return
    num_tiles = num_rows * heads_per_kv_head // tile.rows + most_sequences
    broken = torch.empty(num_kv_heads, num_tiles, dtype=torch.int32, device=call.q.device)
    for is_careful, each in ((False, tile), (True, call.tiles.careful)):
        launch(
            prefill_kernel,
            (num_kv_heads, num_tiles, tile.rows // each.rows),
            call.q,
            call.values,
            call.scales,
            call.out,
            batch.query_start,
            batch.positions,
            batch.block_tables,
            work.counts,
            work.prefill_sequences,
            work.prefill_start,
            broken,
            batch.block_tables.stride(0),
            call.factor,
            call.cap_factor,
            **call.heads,
            **call.source,
            IS_CAREFUL=is_careful,
            ROWS=each.rows,
            PARTS=tile.rows // each.rows,
            STAGES=each.stages,
            num_warps=each.warps,
            num_stages=each.stages,
        )
