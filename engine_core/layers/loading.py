"""Where layers get their tensors: named weights from a checkpoint or made up, packed by the backend.

Knows how parts are fused; does not know files.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from engine_core.layers.linear import Linear, LinearPart
from kernels.ops import Ops, PackedLinear, Quantization


class Weights(Protocol):
    """A source of named tensors."""

    def fill(self, name: str, out: Tensor) -> None:
        """Put tensor ``name`` into ``out``, converted to its dtype.

        Raises ConfigError, naming the tensor, if there is none or its shape is another.
        """

    def finish(self, ignored: frozenset[str]) -> None:
        """All is loaded. Raises ConfigError if tensors are left that the model has no place for.

        ``ignored``: names that may be left.
        """


@dataclass(frozen=True, slots=True)
class LayerLoader:
    """Makes layers of the weights, in the model's ``dtype`` on ``device``."""

    weights: Weights
    ops: Ops
    dtype: torch.dtype
    device: torch.device
    quantization: Quantization | None = None

    def embedding(self, path: str, num_rows: int, num_columns: int) -> Tensor:
        """[num_rows, num_columns] in the model's dtype."""
        table = torch.empty(num_rows, num_columns, dtype=self.dtype, device=self.device)
        self.weights.fill(f"{path}.weight", table)
        return table

    def norm(self, path: str, size: int) -> Tensor:
        """f32 [size]."""
        weight = torch.empty(size, dtype=torch.float32, device=self.device)
        self.weights.fill(f"{path}.weight", weight)
        return weight

    def linear(
        self,
        parts: Sequence[LinearPart],
        num_inputs: int,
        *,
        has_bias: bool = False,
        segments: int = 1,
        is_gated: bool = False,
    ) -> Linear:
        """The parts fused along their rows and packed; ``segments`` and ``is_gated`` as in ``Ops.pack_linear``."""
        num_rows = sum(part.num_rows for part in parts)
        weight = torch.empty(num_rows, num_inputs, dtype=self.dtype, device=self.device)
        bias = torch.empty(num_rows, dtype=torch.float32, device=self.device) if has_bias else None
        start = 0
        for part in parts:
            end = start + part.num_rows
            self.weights.fill(f"{part.path}.weight", weight[start:end])
            if bias is not None:
                self.weights.fill(f"{part.path}.bias", bias[start:end])
            start = end
        return Linear(tuple(parts), self.pack(weight, segments, is_gated=is_gated), bias, self.ops)

    def pack(self, weight: Tensor, segments: int = 1, *, is_gated: bool = False) -> PackedLinear:
        """A matrix [N, K] in the backend's layout, quantized if the model is."""
        return self.ops.pack_linear(weight, segments, is_gated=is_gated, quantization=self.quantization)
