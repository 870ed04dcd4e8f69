"""A linear layer: one packed weight, made of one or more of the checkpoint's matrices."""

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.ops import Ops, PackedLinear


@dataclass(frozen=True, slots=True)
class LinearPart:
    """Consecutive output rows that come from the checkpoint's module ``path``.

    Quantization lists, adapters and parallel plans match on the path.
    """

    path: str
    num_rows: int


@dataclass(frozen=True, slots=True)
class Linear:
    """Parts are fused in order: q, k, v into one matrix, gate and up into another."""

    parts: tuple[LinearPart, ...]
    weight: PackedLinear
    bias: Tensor | None  # f32 [N]
    ops: Ops

    def __call__(self, x: Tensor) -> Tensor:
        """x [T, K] in the model's dtype → f32 [T, N]."""
        return self.ops.linear(x, self.weight, self.bias)

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        """The same, added to ``residual`` f32 [T, N]."""
        return self.ops.linear_add(x, self.weight, self.bias, residual)

    def gated(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """x [T, K] → silu(gate) · up [T, N / 2] in ``dtype``, of a weight that was packed for it."""
        return self.ops.gated_linear(x, self.weight, self.bias, dtype)
