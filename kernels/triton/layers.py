"""Launches the small per-row operations of a layer: embedding, norms, activation, rotary positions.

Values (ids, positions) are the caller's: they are not looked at. Tile sizes were chosen by calculation, for all GPUs
alike, and have not been timed: eight numbers a thread, two loads of 16 bytes, keep memory busy, and more warps shorten
the wait where rows are few.
"""

import torch
from torch import Tensor
from triton import cdiv, next_power_of_2

from kernels.triton.jit import layers as kernels
from kernels.triton.launch import launch

NUMBERS_PER_WARP = 256
MOST_WARPS = 16
TILE = 1024  # numbers of a program, of whole heads or of a part of a row


def embed(ids: Tensor, table: Tensor) -> Tensor:
    """ids i64 [T], table [V, D] → f32 [T, D]."""
    size = table.shape[1]
    table = with_dense_rows(table)
    out = torch.empty((len(ids), size), dtype=torch.float32, device=table.device)
    block = min(TILE, next_power_of_2(size))
    grid = (len(ids), cdiv(size, block))
    launch(kernels.embed_kernel, grid, ids, table, out, table.stride(0), SIZE=size, BLOCK=block)
    return out


def rms_norm(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """x f32 [..., D], weight f32 [D] → ``dtype`` [..., D]; rows, and the heads of each, of any stride."""
    size = x.shape[-1]
    out = torch.empty(x.shape, dtype=dtype, device=x.device)
    heads = with_dense_rows(x) if x.dim() == 3 else with_dense_rows(x.reshape(-1, size)).unsqueeze(1)
    num_heads = heads.shape[1]
    num_rows = len(heads) * num_heads
    block = next_power_of_2(size)
    rows = max(1, TILE // block)
    launch(
        kernels.rms_norm_kernel,
        (cdiv(num_rows, rows),),
        heads,
        weight,
        out,
        num_rows,
        num_heads,
        heads.stride(0),
        heads.stride(1),
        eps,
        SIZE=size,
        BLOCK=block,
        ROWS=rows,
        num_warps=warps_for(rows * block),
    )
    return out


def silu_and_mul(gate_up: Tensor, dtype: torch.dtype) -> Tensor:
    """gate_up f32 [T, 2·I], gate first → ``dtype`` [T, I]."""
    gate_up = with_dense_rows(gate_up)
    num_rows, size = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty((num_rows, size), dtype=dtype, device=gate_up.device)
    block = min(TILE, next_power_of_2(size))
    grid = (num_rows, cdiv(size, block))
    launch(kernels.silu_and_mul_kernel, grid, gate_up, out, gate_up.stride(0), SIZE=size, BLOCK=block)
    return out


def rotary(x: Tensor, positions: Tensor, cos_sin: Tensor, dtype: torch.dtype) -> Tensor:
    """x f32 [T, H, D], positions i64 [T], cos_sin f32 [L, 2·rot] → ``dtype`` [T, H, D]."""
    x, cos_sin = with_dense_rows(x), with_dense_rows(cos_sin)
    num_rows, num_heads, size = x.shape
    out = torch.empty(x.shape, dtype=dtype, device=x.device)
    block, heads = head_tile(size, num_heads)
    launch(
        kernels.rotary_kernel,
        (num_rows, cdiv(num_heads, heads)),
        x,
        positions,
        cos_sin,
        out,
        x.stride(0),
        x.stride(1),
        cos_sin.stride(0),
        NUM_HEADS=num_heads,
        SIZE=size,
        ROTATED=cos_sin.shape[1],
        HEADS=heads,
        BLOCK=block,
        num_warps=warps_for(2 * heads * block),  # each number is loaded with the one it turns with
    )
    return out


def head_tile(head_size: int, num_heads: int) -> tuple[int, int]:
    """(columns, heads) of a program, powers of two: enough heads of a row to fill a tile, no more than it has."""
    block = next_power_of_2(head_size)
    return block, min(max(1, TILE // block), next_power_of_2(num_heads))


def warps_for(num_numbers: int) -> int:
    """Of a program with that many numbers, a power of two."""
    return min(max(num_numbers // NUMBERS_PER_WARP, 1), MOST_WARPS)


def with_dense_rows(x: Tensor) -> Tensor:
    """x, copied only if the numbers of its last dimension do not lie side by side."""
    return x if x.stride(-1) == 1 else x.contiguous()
