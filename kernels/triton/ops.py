"""The class that ties the Triton functions to the table of operations."""

import torch
from torch import Tensor

from kernels.ops import (
    AttentionBatch,
    Count,
    KVLayout,
    Logprobs,
    PackedFormat,
    PackedLinear,
    Program,
    Quantization,
    SampleRows,
    Samples,
    Trace,
)
from kernels.triton import attention, kv, layers, linear, logprobs, memory, sampling
from kernels.triton.attention_tiles import MOST_HEAD_SIZE
from kernels.triton.target import Target


class TritonOps:
    """``kernels.ops.Ops`` on a CUDA device. Contracts and shapes are there. No operation waits for the device."""

    name = "triton"
    packed_format: PackedFormat | None = None

    def __init__(self, target: Target) -> None:
        self.isa = target.isa
        self.quantizations: frozenset[Quantization] = frozenset({"int8", "fp8"} if target.has_fp8 else {"int8"})
        fp8 = {torch.float8_e4m3fn} if target.has_fp8 else set()
        self.kv_dtypes = frozenset({torch.float32, torch.bfloat16, torch.int8} | fp8)
        self._target = target

    def pack_linear(
        self, weight: Tensor, segments: int = 1, *, is_gated: bool = False, quantization: Quantization | None = None
    ) -> PackedLinear:
        if quantization is not None and quantization not in self.quantizations:
            raise ValueError(f"{quantization} linears: {self._target.name} has {', '.join(sorted(self.quantizations))}")
        return linear.pack_linear(weight, segments, is_gated=is_gated, quantization=quantization)

    def linear(self, x: Tensor, weight: PackedLinear, bias: Tensor | None = None) -> Tensor:
        return linear.linear(self._target, x, weight, bias)

    def linear_add(self, x: Tensor, weight: PackedLinear, bias: Tensor | None, residual: Tensor) -> Tensor:
        return linear.linear(self._target, x, weight, bias, residual)

    def gated_linear(self, x: Tensor, weight: PackedLinear, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
        return linear.gated_linear(self._target, x, weight, bias, dtype)

    def embed(self, ids: Tensor, table: Tensor) -> Tensor:
        return layers.embed(ids, table)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
        return layers.rms_norm(x, weight, eps, dtype)

    def silu_and_mul(self, gate_up: Tensor, dtype: torch.dtype) -> Tensor:
        return layers.silu_and_mul(gate_up, dtype)

    def rotary(self, x: Tensor, positions: Tensor, cos_sin: Tensor, dtype: torch.dtype) -> Tensor:
        return layers.rotary(x, positions, cos_sin, dtype)

    def kv_layout(self, block_size: int, num_kv_heads: int, head_size: int, dtype: torch.dtype) -> KVLayout:
        if dtype not in self.kv_dtypes:
            raise ValueError(f"a KV cache in {dtype}: {self._target.name} cannot")
        if head_size > MOST_HEAD_SIZE:
            raise ValueError(f"heads of {head_size} entries, attention has at most {MOST_HEAD_SIZE}")
        return kv.TritonKVLayout(block_size, num_kv_heads, head_size, dtype)

    def write_kv(self, k: Tensor, v: Tensor, cache: Tensor, layout: KVLayout, kv_slots: Tensor) -> None:
        kv.write_kv(k, v, cache, layout, kv_slots)

    def rotary_write_kv(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        norms: tuple[Tensor, Tensor, float] | None,
        positions: Tensor,
        cos_sin: Tensor,
        cache: Tensor,
        layout: KVLayout,
        kv_slots: Tensor,
        dtype: torch.dtype,
    ) -> Tensor:
        return kv.rotary_write_kv(q, k, v, norms, positions, cos_sin, cache, layout, kv_slots, dtype)

    def plan_attention(self, batch: AttentionBatch) -> AttentionBatch:
        return attention.plan_attention(self._target, batch)

    def paged_attention(
        self,
        q: Tensor,
        cache: Tensor,
        layout: KVLayout,
        batch: AttentionBatch,
        scale: float,
        window: int | None,
        dtype: torch.dtype,
        soft_cap: float | None = None,
    ) -> Tensor:
        return attention.paged_attention(self._target, q, cache, layout, batch, scale, window, dtype, soft_cap)

    def copy_blocks(self, cache: Tensor, sources: Tensor, destinations: Tensor) -> None:
        memory.copy_blocks(cache, sources, destinations)

    def gather_tokens(self, tokens: Tensor, slots: Tensor, positions: Tensor) -> Tensor:
        return memory.gather_tokens(tokens, slots, positions)

    def store_tokens(self, tokens: Tensor, slots: Tensor, positions: Tensor, ids: Tensor) -> None:
        memory.store_tokens(tokens, slots, positions, ids)

    def sample(self, logits: Tensor, tokens: Tensor, rows: SampleRows) -> Samples:
        return sampling.sample(logits, tokens, rows)

    def logprobs(self, logits: Tensor, ids: Tensor, num_top: int) -> Logprobs:
        return logprobs.token_logprobs(logits, ids, num_top)

    def record(self, trace: Trace, most: dict[Count, int]) -> Program | None:
        return None  # a CUDA graph records kernels: engine_core.runner has that
