"""Self-attention over the paged KV cache: projections, optional head norms, rotary embedding.

q, K and V are in the model's dtype, everything between float32 (design 7.3).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from engine_core.layers.linear import Linear, LinearPart
from engine_core.layers.loading import LayerLoader
from engine_core.models.config import ArchitectureConfig
from kernels.ops import AttentionBatch, KVLayout, Ops


@dataclass(frozen=True, slots=True)
class Attention:
    """One layer's attention. ``norms``: of q's and k's heads (f32 [head_size] each) and their eps, where there are."""

    config: ArchitectureConfig
    qkv_proj: Linear
    o_proj: Linear
    norms: tuple[Tensor, Tensor, float] | None
    rotary_table: Tensor  # f32 [max_model_len, head_size]
    window: int | None
    dtype: torch.dtype
    ops: Ops

    @classmethod
    def load(
        cls, loader: LayerLoader, config: ArchitectureConfig, path: str, window: int | None, rotary_table: Tensor
    ) -> "Attention":
        """Raises ConfigError if a weight is missing or misshapen."""
        q_size, kv_size = config.num_heads * config.head_size, config.num_kv_heads * config.head_size
        qkv = [
            LinearPart(f"{path}.q_proj", q_size),
            LinearPart(f"{path}.k_proj", kv_size),
            LinearPart(f"{path}.v_proj", kv_size),
        ]
        output = [LinearPart(f"{path}.o_proj", config.hidden_size)]
        q_norm = loader.norm(f"{path}.q_norm", config.head_size) if config.qk_norm else None
        k_norm = loader.norm(f"{path}.k_norm", config.head_size) if config.qk_norm else None
        return cls(
            config=config,
            qkv_proj=loader.linear(qkv, config.hidden_size, has_bias=config.attention_bias),
            o_proj=loader.linear(output, q_size, has_bias=config.output_bias, segments=config.num_segments),
            norms=(q_norm, k_norm, config.rms_norm_eps) if q_norm is not None and k_norm is not None else None,
            rotary_table=rotary_table,
            window=window,
            dtype=loader.dtype,
            ops=loader.ops,
        )

    def __call__(self, x: Tensor, residual: Tensor, cache: Tensor, layout: KVLayout, batch: AttentionBatch) -> Tensor:
        """x [T, hidden] in the model's dtype, cache u8 [B, bytes_per_block], written here → f32 [T, hidden], added to
        ``residual``."""
        config, ops = self.config, self.ops
        sizes = [config.num_heads, config.num_kv_heads, config.num_kv_heads]
        heads = self.qkv_proj(x).view(len(x), sum(sizes), config.head_size)
        q, k, v = torch.split(heads, sizes, dim=1)
        q = ops.rotary_write_kv(
            q, k, v, self.norms, batch.positions, self.rotary_table, cache, layout, batch.kv_slots, self.dtype
        )
        scale = config.head_size**-0.5
        output = ops.paged_attention(q, cache, layout, batch, scale, self.window, self.dtype)
        return self.o_proj.add(output.view(len(x), -1), residual)
