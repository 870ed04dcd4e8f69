"""The gated feed-forward layer: down(silu(gate) · up)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from engine_core.layers.linear import Linear, LinearPart
from engine_core.layers.loading import LayerLoader
from engine_core.models.config import ArchitectureConfig
from kernels.ops import Ops


@dataclass(frozen=True, slots=True)
class MLP:
    """One layer's feed-forward part; gate and up are one matrix, gate first."""

    gate_up_proj: Linear
    down_proj: Linear
    dtype: torch.dtype
    ops: Ops

    @classmethod
    def load(cls, loader: LayerLoader, config: ArchitectureConfig, path: str) -> "MLP":
        """Raises ConfigError if a weight is missing or misshapen."""
        size = config.intermediate_size
        gate_up = [LinearPart(f"{path}.gate_proj", size), LinearPart(f"{path}.up_proj", size)]
        down = [LinearPart(f"{path}.down_proj", config.hidden_size)]
        return cls(
            gate_up_proj=loader.linear(gate_up, config.hidden_size, has_bias=config.mlp_bias, is_gated=True),
            down_proj=loader.linear(down, size, has_bias=config.mlp_bias, segments=config.num_segments),
            dtype=loader.dtype,
            ops=loader.ops,
        )

    def __call__(self, x: Tensor, residual: Tensor) -> Tensor:
        """x [T, hidden] in the model's dtype → f32 [T, hidden], added to ``residual``."""
        return self.down_proj.add(self.gate_up_proj.gated(x, self.dtype), residual)
