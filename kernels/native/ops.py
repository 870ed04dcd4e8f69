"""The class that ties the native functions to the table of operations.

Each operation prepares its arguments, then calls the library, or leaves the call in an open recording.
"""

import ctypes

import torch
from torch import Tensor

from kernels.native import attention, layers, linear, sampling
from kernels.native.library import Library
from kernels.native.program import NativeProgram, Recording, trace_into
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


def allocate(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """An output that is not recorded."""
    return torch.empty(shape, dtype=dtype)


class NativeOps:
    """``kernels.ops.Ops`` on this host's CPU. Contracts and shapes are there."""

    name = "native"
    quantizations: frozenset[Quantization] = frozenset({"int8", "int4"})
    kv_dtypes = frozenset({torch.float32, torch.bfloat16, torch.int8})

    def __init__(self, library: Library) -> None:
        self.isa = f"{library.isa}-{library.version}"
        self.packed_format: PackedFormat | None = linear.NativeFormat(library.version)
        self._library = library
        self._recording: Recording | None = None

    def pack_linear(
        self, weight: Tensor, segments: int = 1, *, is_gated: bool = False, quantization: Quantization | None = None
    ) -> PackedLinear:
        if quantization is not None and quantization not in self.quantizations:
            raise ValueError(f"{quantization} linears: the {self.name} kernels cannot")
        return linear.pack_linear(self._library, weight, segments, is_gated=is_gated, quantization=quantization)

    def linear(self, x: Tensor, weight: PackedLinear, bias: Tensor | None = None) -> Tensor:
        out, args = linear.prepare_linear(x, linear.own(weight), bias, None, self._empty)
        self._call("octavo_linear", args, x, weight, bias)
        return out

    def linear_add(self, x: Tensor, weight: PackedLinear, bias: Tensor | None, residual: Tensor) -> Tensor:
        out, args = linear.prepare_linear(x, linear.own(weight), bias, residual, self._empty)
        self._call("octavo_linear", args, x, weight, bias, residual)
        return out

    def gated_linear(self, x: Tensor, weight: PackedLinear, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
        out, args = linear.prepare_gated_linear(x, linear.own(weight), bias, dtype, self._empty)
        self._call("octavo_linear", args, x, weight, bias)
        return out

    def embed(self, ids: Tensor, table: Tensor) -> Tensor:
        out, args = layers.prepare_embed(ids, table, self._empty)
        self._call("octavo_embed", args, ids, table)
        return out

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
        out, args = layers.prepare_rms_norm(x, weight, eps, dtype, self._empty)
        self._call("octavo_rms_norm", args, x, weight)
        return out

    def silu_and_mul(self, gate_up: Tensor, dtype: torch.dtype) -> Tensor:
        out, args = layers.prepare_silu_and_mul(gate_up, dtype, self._empty)
        self._call("octavo_silu_and_mul", args, gate_up)
        return out

    def rotary(self, x: Tensor, positions: Tensor, cos_sin: Tensor, dtype: torch.dtype) -> Tensor:
        out, args = layers.prepare_rotary(x, positions, cos_sin, dtype, self._empty)
        self._call("octavo_rotary", args, x, positions, cos_sin)
        return out

    def kv_layout(self, block_size: int, num_kv_heads: int, head_size: int, dtype: torch.dtype) -> KVLayout:
        if dtype not in self.kv_dtypes:
            raise ValueError(f"a KV cache in {dtype}: the {self.name} kernels cannot")
        return attention.NativeKVLayout(block_size, num_kv_heads, head_size, dtype)

    def write_kv(self, k: Tensor, v: Tensor, cache: Tensor, layout: KVLayout, kv_slots: Tensor) -> None:
        args = attention.prepare_write_kv(k, v, cache, layout, kv_slots)
        self._call("octavo_write_kv", args, k, v, cache, kv_slots)

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
        out, args = attention.prepare_rotary_write_kv(
            q, k, v, norms, positions, cos_sin, cache, layout, kv_slots, dtype, self._empty
        )
        self._call("octavo_rotary_write_kv", args, q, k, v, norms, positions, cos_sin, cache, kv_slots)
        return out

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
        out, args = attention.prepare_paged_attention(
            q, cache, layout, batch, scale, window, dtype, self._empty, soft_cap
        )
        self._call("octavo_paged_attention", args, q, cache, batch)
        return out

    def copy_blocks(self, cache: Tensor, sources: Tensor, destinations: Tensor) -> None:
        self._call("octavo_copy_blocks", layers.prepare_copy_blocks(cache, sources, destinations), sources)

    def gather_tokens(self, tokens: Tensor, slots: Tensor, positions: Tensor) -> Tensor:
        out, args = layers.prepare_gather_tokens(tokens, slots, positions, self._empty)
        self._call("octavo_gather_tokens", args, tokens, slots, positions)
        return out

    def store_tokens(self, tokens: Tensor, slots: Tensor, positions: Tensor, ids: Tensor) -> None:
        self._call("octavo_store_tokens", layers.prepare_store_tokens(tokens, slots, positions, ids), slots)

    def sample(self, logits: Tensor, tokens: Tensor, rows: SampleRows) -> Samples:
        samples, args = sampling.prepare_sample(logits, tokens, rows, self._empty)
        self._call("octavo_sample", args, logits, tokens, rows)
        return samples

    def logprobs(self, logits: Tensor, ids: Tensor, num_top: int) -> Logprobs:
        logprobs, args = sampling.prepare_logprobs(logits, ids, num_top, self._empty)
        self._call("octavo_logprobs", args, logits, ids)
        return logprobs

    def record(self, trace: Trace, most: dict[Count, int]) -> Program | None:
        recording = self._recording = Recording()
        try:
            outputs = trace_into(recording, trace)
        finally:
            self._recording = None
        return NativeProgram(recording, outputs, most, self._library)

    def _empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return allocate(shape, dtype) if self._recording is None else self._recording.empty(shape, dtype)

    def _call(self, name: str, args: ctypes.Structure, *operands: object) -> None:
        if self._recording is None:
            self._library.call(name, args)
        else:
            self._recording.add(name, args, *operands)
