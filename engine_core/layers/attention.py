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
    """One layer's attention. ``q_norm`` and ``k_norm``: f32 [head_size], applied to each head."""

    config: ArchitectureConfig
    qkv_proj: Linear
    o_proj: Linear
    q_norm: Tensor | None
    k_norm: Tensor | None
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
        return cls(
            config=config,
            qkv_proj=loader.linear(qkv, config.hidden_size, has_bias=config.attention_bias),
            o_proj=loader.linear(output, q_size, has_bias=config.output_bias, segments=config.num_segments),
            q_norm=loader.norm(f"{path}.q_norm", config.head_size) if config.qk_norm else None,
            k_norm=loader.norm(f"{path}.k_norm", config.head_size) if config.qk_norm else None,
            rotary_table=rotary_table,
            window=window,
            dtype=loader.dtype,
            ops=loader.ops,
        )

    def __call__(self, x: Tensor, cache: Tensor, layout: KVLayout, batch: AttentionBatch) -> Tensor:
        """x [T, hidden] in the model's dtype, cache u8 [B, bytes_per_block], written here → f32 [T, hidden]."""
        config = self.config
        sizes = [config.num_heads, config.num_kv_heads, config.num_kv_heads]
        heads = self.qkv_proj(x).view(len(x), sum(sizes), config.head_size)
        q, k, v = torch.split(heads, sizes, dim=1)
        q, k = self._rotated(q, self.q_norm, batch), self._rotated(k, self.k_norm, batch)
        self.ops.write_kv(k, v.to(self.dtype), cache, layout, batch.kv_slots)
        scale = config.head_size**-0.5
        output = self.ops.paged_attention(q, cache, layout, batch, scale, self.window, self.dtype)
        return self.o_proj(output.view(len(x), -1))

    def _rotated(self, heads: Tensor, norm: Tensor | None, batch: AttentionBatch) -> Tensor:
        if norm is not None:
            heads = self.ops.rms_norm(heads, norm, self.config.rms_norm_eps, torch.float32)
        return self.ops.rotary(heads, batch.positions, self.rotary_table, self.dtype)
