"""The small per-row operations of a layer, all in float32: embedding, norms, activation, rotary positions."""

import torch
from torch import Tensor

from kernels.reference.elementwise import exp_nonpositive, tree_sum


def embed(ids: Tensor, table: Tensor) -> Tensor:
    """ids i64 [T], table [V, D] → float32 [T, D]."""
    return table.index_select(0, ids).to(torch.float32)


def rms_norm(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """x / sqrt(mean(x²) + eps) · weight over the last dimension, in ``dtype``; the squares add in a fixed tree."""
    size = torch.full((), x.shape[-1], dtype=torch.float32, device=x.device)
    mean_square = tree_sum(x * x).div(size)
    return x.div(mean_square.add(eps).sqrt_()).mul_(weight).to(dtype)


def silu_and_mul(gate_up: Tensor, dtype: torch.dtype) -> Tensor:
    """[T, 2·I] float32, gate first → silu(gate) · up [T, I]. The sigmoid uses exp(−|gate|), which cannot overflow."""
    gate, up = gate_up.chunk(2, dim=-1)
    decay = exp_nonpositive(-gate.abs())
    numerator = torch.where(gate < 0, decay, 1.0)
    return (gate * numerator).div_(decay.add_(1.0)).mul_(up).to(dtype)


def rotary(x: Tensor, positions: Tensor, cos_sin: Tensor, dtype: torch.dtype) -> Tensor:
    """Half-split rotation of the first 2·rot entries of each head of x [T, H, D]; cos_sin [L, 2·rot], cos then sin."""
    cos, sin = cos_sin.index_select(0, positions).unsqueeze(1).chunk(2, dim=-1)
    size = cos.shape[-1]
    first, second = x[..., :size], x[..., size : 2 * size]
    result = torch.empty(x.shape, dtype=dtype, device=x.device)
    result[..., :size] = (first * cos).sub_(second * sin)
    result[..., size : 2 * size] = (second * cos).add_(first * sin)
    result[..., 2 * size :] = x[..., 2 * size :]
    return result
