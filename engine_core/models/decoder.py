"""The decoder of the Llama family: embedding, layers of attention and feed-forward, norm, head.

Plain objects that hold packed weights; every computation is an operation of the ``Ops`` table. Knows nothing of
requests, slots or files.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine_core.layers.attention import Attention
from engine_core.layers.linear import Linear
from engine_core.layers.loading import LayerLoader
from engine_core.layers.mlp import MLP
from engine_core.layers.rotary import build_rotary_table
from engine_core.models.config import ArchitectureConfig
from kernels.ops import AttentionBatch, KVLayout, Ops


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """Two residual branches, each behind a norm (weights f32 [hidden])."""

    attention_norm: Tensor
    attention: Attention
    mlp_norm: Tensor
    mlp: MLP
    eps: float

    @classmethod
    def load(cls, loader: LayerLoader, config: ArchitectureConfig, index: int, rotary_table: Tensor) -> "DecoderLayer":
        """Raises ConfigError if a weight is missing or misshapen."""
        path = f"model.layers.{index}"
        return cls(
            attention_norm=loader.norm(f"{path}.input_layernorm", config.hidden_size),
            attention=Attention.load(loader, config, f"{path}.self_attn", config.windows[index], rotary_table),
            mlp_norm=loader.norm(f"{path}.post_attention_layernorm", config.hidden_size),
            mlp=MLP.load(loader, config, f"{path}.mlp"),
            eps=config.rms_norm_eps,
        )

    def __call__(self, residual: Tensor, cache: Tensor, layout: KVLayout, batch: AttentionBatch) -> Tensor:
        """residual f32 [T, hidden] → f32 [T, hidden]; writes the cache."""
        attention, mlp = self.attention, self.mlp
        x = attention.ops.rms_norm(residual, self.attention_norm, self.eps, attention.dtype)
        residual = attention(x, residual, cache, layout, batch)
        x = mlp.ops.rms_norm(residual, self.mlp_norm, self.eps, mlp.dtype)
        return mlp(x, residual)


@dataclass(frozen=True, slots=True)
class DecoderModel:
    """A loaded model. T rows of a step, R rows whose logits are wanted."""

    config: ArchitectureConfig
    embedding: Tensor  # [vocab_size, hidden] in the model's dtype
    layers: tuple[DecoderLayer, ...]
    norm: Tensor  # f32 [hidden]
    lm_head: Linear
    dtype: torch.dtype
    ops: Ops

    @classmethod
    def build(cls, config: ArchitectureConfig, loader: LayerLoader, max_model_len: int) -> "DecoderModel":
        """Take every weight from the loader. Raises ConfigError, naming the tensor, if one does not fit."""
        rotary_table = build_rotary_table(config.rope, config.head_size, max_model_len).to(loader.device)
        embedding = loader.embedding("model.embed_tokens", config.vocab_size, config.hidden_size)
        layers = [DecoderLayer.load(loader, config, index, rotary_table) for index in range(config.num_layers)]
        norm = loader.norm("model.norm", config.hidden_size)
        is_tied = config.tie_word_embeddings
        shared = embedding if is_tied else None
        lm_head = loader.head("lm_head", config.vocab_size, config.hidden_size, shared)
        # What config.json says decides: a tied head that some checkpoints carry besides is not read.
        loader.finish(frozenset({"lm_head.weight"} if is_tied else ()))
        return cls(config, embedding, tuple(layers), norm, lm_head, loader.dtype, loader.ops)

    @property
    def num_layers(self) -> int:
        """Also the number of KV caches that ``forward`` takes."""
        return len(self.layers)

    def kv_layout(self, block_size: int, dtype: torch.dtype) -> KVLayout:
        """The layout of every layer's blocks; ``block_size`` in tokens, ``dtype`` of what is kept."""
        return self.ops.kv_layout(block_size, self.config.num_kv_heads, self.config.head_size, dtype)

    def forward(
        self, input_ids: Tensor, positions: Tensor, caches: Sequence[Tensor], layout: KVLayout, batch: AttentionBatch
    ) -> Tensor:
        """input_ids, positions i64 [T], a cache u8 [B, bytes_per_block] for each layer, written here →
        f32 [T, hidden], the residual stream before the last norm."""
        residual = self.ops.embed(input_ids, self.embedding)
        for layer, cache in zip(self.layers, caches, strict=True):
            residual = layer(residual, cache, layout, batch)
        return residual

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden f32 [R, hidden], rows of ``forward``'s result → f32 [R, vocab_size]."""
        return self.lm_head(self.ops.rms_norm(hidden, self.norm, self.config.rms_norm_eps, self.dtype))
