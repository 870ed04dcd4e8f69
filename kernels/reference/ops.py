"""The class that ties the reference functions to the table of operations."""

import hashlib

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
from kernels.reference import (
    attention,
    layers,
    linear,
    linear_int4,
    linear_scaled,
    logprobs,
    memory,
    sampling,
)


class ReferenceOps:
    """``kernels.ops.Ops`` in plain torch. Contracts and shapes are there."""

    name = "reference"
    quantizations: frozenset[Quantization] = frozenset({"int8", "int4", "fp8"})
    kv_dtypes = frozenset({torch.float32, torch.bfloat16, torch.int8, torch.float8_e4m3fn})
    packed_format: PackedFormat | None = None

    def __init__(self) -> None:
        self.isa = f"torch-{torch.__version__}-{torch.backends.cpu.get_cpu_capability()}-{probe_products()}"

    def pack_linear(
        self, weight: Tensor, segments: int = 1, *, is_gated: bool = False, quantization: Quantization | None = None
    ) -> PackedLinear:
        # Gated or not: the parts run one after the other here.
        match quantization:
            case "int8":
                return linear_scaled.pack_linear(weight, segments, linear_scaled.INT8)
            case "fp8":
                return linear_scaled.pack_linear(weight, segments, linear_scaled.FP8)
            case "int4":
                return linear_int4.pack_linear(weight, segments)
        return linear.pack_linear(weight, segments)

    def linear(self, x: Tensor, weight: PackedLinear, bias: Tensor | None = None) -> Tensor:
        if isinstance(weight, linear_scaled.ScaledLinear):
            return linear_scaled.linear(x, weight, bias)
        if isinstance(weight, linear_int4.Int4Linear):
            return linear_int4.linear(x, weight, bias)
        return linear.linear(x, weight, bias)

    def linear_add(self, x: Tensor, weight: PackedLinear, bias: Tensor | None, residual: Tensor) -> Tensor:
        return self.linear(x, weight, bias).add_(residual)

    def gated_linear(self, x: Tensor, weight: PackedLinear, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
        return layers.silu_and_mul(self.linear(x, weight, bias), dtype)

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
            raise ValueError(f"a KV cache in {dtype}: the {self.name} kernels cannot")
        return KVLayout(block_size, num_kv_heads, head_size, dtype)

    def write_kv(self, k: Tensor, v: Tensor, cache: Tensor, layout: KVLayout, kv_slots: Tensor) -> None:
        memory.write_kv(k, v, cache, layout, kv_slots)

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
        if norms is not None:
            q_weight, k_weight, eps = norms
            q = layers.rms_norm(q, q_weight, eps, torch.float32)
            k = layers.rms_norm(k, k_weight, eps, torch.float32)
        k = layers.rotary(k, positions, cos_sin, dtype)
        memory.write_kv(k, v.to(dtype), cache, layout, kv_slots)
        return layers.rotary(q, positions, cos_sin, dtype)

    def plan_attention(self, batch: AttentionBatch) -> AttentionBatch:
        return batch

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
        return attention.paged_attention(q, cache, layout, batch, scale, window, dtype, soft_cap)

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
        return None


def probe_products() -> str:
    """Names the order in which this host's matrix products add: a digest of two products of fixed numbers.

    The BLAS library chooses its code by CPU; hosts that choose differently must not continue each other's sequences.
    """
    values = torch.arange(16 * 1024 + 256 * 1024, dtype=torch.int64).mul(1103515245).add(12345).bitwise_and(0xFFFF)
    numbers = values.to(torch.float32).sub(32768.0)
    x, weight = numbers[: 16 * 1024].view(16, 1024), numbers[16 * 1024 :].view(256, 1024)
    large = torch.mm(x, weight.t())
    small = torch.bmm(x.view(16, 16, 64), weight[:16].view(16, 16, 64).transpose(1, 2))
    return hashlib.sha256(large.numpy().tobytes() + small.numpy().tobytes()).hexdigest()[:8]
