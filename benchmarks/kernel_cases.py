"""Each operation at a model's shapes as something that can be timed: for every backend a call, and what it must move
and compute. Weights and KV caches are rotated through more memory than the last cache holds, as layers are in a step.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle

import torch
from torch import Tensor

from benchmarks.shapes import LinearShape, Shapes
from kernels.ops import AttentionBatch, KVLayout, Ops, PackedLinear, Quantization, SampleRows

MOST_COPIES = 64
MAX_COPY_BYTES = 2**30
BLOCK_SIZE = 16
DTYPE_NAMES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.int8: "int8"}


@dataclass(frozen=True, slots=True)
class Case:
    """One operation. ``calls``: backend to call; ``peak``: which of the compute ceilings it has, or none.

    ``num_bytes``: what must be read and written once. ``num_rows``: what a time per row is divided by.
    """

    name: str
    calls: dict[str, Callable[[], object]]
    num_bytes: int
    num_flops: int = 0
    peak: str = ""
    num_rows: int = 1


@dataclass(frozen=True, slots=True)
class Backends:
    """Name to table of operations. ``cache_bytes``: of the last cache."""

    ops: dict[str, Ops]
    cache_bytes: int

    def num_copies(self, num_bytes: int) -> int:
        """How many of something exceed the last cache twice, within reason."""
        wanted = -(-2 * self.cache_bytes // num_bytes)
        return max(1, min(wanted, MOST_COPIES, MAX_COPY_BYTES // num_bytes))


# ---- linears


def linear_case(backends: Backends, shape: LinearShape, dtype: torch.dtype, num_rows: int, copies: "Copies") -> Case:
    """``dtype``: of the weights; inputs of int8 ones are bfloat16. ``copies``: the packed weights by backend."""
    x = torch.randn(num_rows, shape.num_inputs).to(torch.bfloat16 if dtype == torch.int8 else dtype)
    calls = {}
    for name, ops in backends.ops.items():
        calls[name] = _linear_call(ops, shape, x, cycle(copies[name]))
    num_weights = shape.num_outputs * shape.num_inputs
    return Case(
        f"{shape.name} {DTYPE_NAMES[dtype]}, {num_rows} rows",
        calls,
        num_weights * dtype.itemsize + x.numel() * x.itemsize,
        2 * num_rows * num_weights,
        DTYPE_NAMES[dtype],
    )


Copies = dict[str, list[PackedLinear]]


def pack_copies(backends: Backends, shape: LinearShape, dtype: torch.dtype) -> Copies:
    """The same weight as often as the caches need it, the reference's once: it is slow for other reasons."""
    weight = torch.randn(shape.num_outputs, shape.num_inputs) / shape.num_inputs**0.5
    source = weight if dtype == torch.float32 else weight.to(torch.bfloat16)
    num_copies = backends.num_copies(shape.num_outputs * shape.num_inputs * dtype.itemsize)

    def pack(ops: Ops) -> PackedLinear:
        quantization: Quantization | None = "int8" if dtype == torch.int8 else None
        return ops.pack_linear(source, shape.segments, is_gated=shape.is_gated, quantization=quantization)

    return {
        name: [pack(ops) for _ in range(1 if name == "reference" else num_copies)] for name, ops in backends.ops.items()
    }


def _linear_call(ops: Ops, shape: LinearShape, x: Tensor, weights: Iterator[PackedLinear]) -> Callable[[], object]:
    if shape.is_gated:
        return lambda: ops.gated_linear(x, next(weights), None, x.dtype)
    return lambda: ops.linear(x, next(weights))


# ---- operations on rows


def norm_case(backends: Backends, shapes: Shapes, num_rows: int) -> Case:
    """rms_norm of the residual stream, to bfloat16."""
    x, weight = torch.randn(num_rows, shapes.hidden), torch.ones(shapes.hidden)
    calls = {name: _norm_call(ops, x, weight) for name, ops in backends.ops.items()}
    return Case(f"rms_norm, {num_rows} rows", calls, x.numel() * (4 + 2), num_rows=num_rows)


def _norm_call(ops: Ops, x: Tensor, weight: Tensor) -> Callable[[], object]:
    return lambda: ops.rms_norm(x, weight, 1e-5, torch.bfloat16)


def rotary_case(backends: Backends, shapes: Shapes, num_rows: int, kv_dtype: torch.dtype) -> Case:
    """rotary_write_kv of slices of the fused projection, each row into a block of its own."""
    heads, kv_heads, size = shapes.num_heads, shapes.num_kv_heads, shapes.head_size
    fused = torch.randn(num_rows, heads + 2 * kv_heads, size)
    parts = fused[:, :heads], fused[:, heads : heads + kv_heads], fused[:, heads + kv_heads :]
    positions = torch.arange(num_rows)
    cos_sin, slots = torch.randn(num_rows, size), torch.arange(num_rows) * BLOCK_SIZE
    calls: dict[str, Callable[[], object]] = {}
    for name, ops in backends.ops.items():
        layout = ops.kv_layout(BLOCK_SIZE, kv_heads, size, kv_dtype)
        cache = torch.zeros(num_rows, layout.bytes_per_block, dtype=torch.uint8)
        calls[name] = _rotary_call(ops, parts, positions, cos_sin, cache, layout, slots)
    num_bytes = fused.numel() * 4 + num_rows * size * (heads * 2 + 2 * kv_heads * kv_dtype.itemsize)
    return Case(f"rotary_write_kv {DTYPE_NAMES[kv_dtype]}, {num_rows} rows", calls, num_bytes, num_rows=num_rows)


def _rotary_call(
    ops: Ops,
    parts: Sequence[Tensor],
    positions: Tensor,
    cos_sin: Tensor,
    cache: Tensor,
    layout: KVLayout,
    slots: Tensor,
) -> Callable[[], object]:
    q, k, v = parts
    dtype = torch.float32 if layout.dtype == torch.float32 else torch.bfloat16
    return lambda: ops.rotary_write_kv(q, k, v, None, positions, cos_sin, cache, layout, slots, dtype)


# ---- attention


def attention_case(
    backends: Backends, shapes: Shapes, kv_dtype: torch.dtype, batch: int, start: int, num_tokens: int
) -> Case:
    """``batch`` sequences that each compute ``num_tokens`` tokens from position ``start``."""
    heads, kv_heads, size = shapes.num_heads, shapes.num_kv_heads, shapes.head_size
    dtype = torch.float32 if kv_dtype == torch.float32 else torch.bfloat16
    q = torch.randn(batch * num_tokens, heads, size).to(dtype)
    end, blocks_each = start + num_tokens, -(-(start + num_tokens) // BLOCK_SIZE)
    tables = torch.randperm(batch * blocks_each).to(torch.int32).view(batch, blocks_each)
    positions = torch.arange(start, end).repeat(batch)
    rows = AttentionBatch(
        query_start=(torch.arange(batch + 1) * num_tokens).to(torch.int32),
        block_tables=tables,
        positions=positions,
        kv_slots=torch.zeros(batch * num_tokens, dtype=torch.int64),
    )
    num_tokens_read = batch * end
    scale_bytes = 8 * kv_heads if kv_dtype == torch.int8 else 0
    token_bytes = 2 * kv_heads * size * kv_dtype.itemsize + scale_bytes
    calls = {name: _attention_call(backends, name, q, kv_dtype, (kv_heads, size), rows) for name in backends.ops}
    num_pairs = batch * sum(range(start + 1, end + 1))
    what = f"{batch} at {start + 1}" if num_tokens == 1 else f"{num_tokens} tokens at {start}"
    return Case(
        f"paged_attention {DTYPE_NAMES[kv_dtype]}, {what}",
        calls,
        num_tokens_read * token_bytes + 2 * q.numel() * q.itemsize,
        4 * num_pairs * heads * size,
        DTYPE_NAMES[torch.float32],  # scores and sums are float32, whatever the cache holds
    )


def _attention_call(
    backends: Backends, name: str, q: Tensor, kv_dtype: torch.dtype, kv_shape: tuple[int, int], rows: AttentionBatch
) -> Callable[[], object]:
    ops = backends.ops[name]
    layout = ops.kv_layout(BLOCK_SIZE, *kv_shape, kv_dtype)
    num_blocks = rows.block_tables.numel()
    num_copies = 1 if name == "reference" else backends.num_copies(num_blocks * layout.bytes_per_block)
    caches = cycle([_filled_cache(ops, layout, num_blocks) for _ in range(num_copies)])
    scale = kv_shape[1] ** -0.5
    return lambda: ops.paged_attention(q, next(caches), layout, rows, scale, None, q.dtype)


def _filled_cache(ops: Ops, layout: KVLayout, num_blocks: int) -> Tensor:
    """Written by the backend itself, so that scales and places are what it reads."""
    cache = torch.zeros(num_blocks, layout.bytes_per_block, dtype=torch.uint8)
    num_tokens = num_blocks * layout.block_size
    dtype = torch.float32 if layout.dtype == torch.float32 else torch.bfloat16
    values = torch.randn(num_tokens, layout.num_kv_heads, layout.head_size).to(dtype)
    ops.write_kv(values, values, cache, layout, torch.arange(num_tokens))
    return cache


# ---- sampling


SAMPLING: dict[str, dict[str, float]] = {
    "greedy": {"temperature": 0.0},
    "T=0.8": {"temperature": 0.8},
    "T=0.8, top_p=0.95": {"temperature": 0.8, "top_p": 0.95},
    "greedy, 5 logprobs": {"temperature": 0.0, "num_logprobs": 5},
}
CONTEXT = 256


def sampling_case(backends: Backends, shapes: Shapes, kind: str, num_rows: int) -> Case:
    """``kind``: of ``SAMPLING``."""
    logits = torch.randn(num_rows, shapes.vocab) * 3
    tokens = torch.randint(shapes.vocab, (num_rows, CONTEXT), dtype=torch.int32)
    rows = sample_rows(num_rows, shapes.vocab, **SAMPLING[kind])
    calls = {name: _sample_call(ops, logits, tokens, rows) for name, ops in backends.ops.items()}
    return Case(f"sample {kind}, {num_rows} rows", calls, logits.numel() * 4, num_rows=num_rows)


def _sample_call(ops: Ops, logits: Tensor, tokens: Tensor, rows: SampleRows) -> Callable[[], object]:
    return lambda: ops.sample(logits, tokens, rows)


def sample_rows(
    num_rows: int, vocab: int, *, temperature: float, top_p: float = 1.0, num_logprobs: float = -1
) -> SampleRows:
    """Rows that differ in nothing but slot and seed, without lists."""

    def floats(value: float) -> Tensor:
        return torch.full((num_rows,), value)

    def integers(value: int) -> Tensor:
        return torch.full((num_rows,), value, dtype=torch.int64)

    offsets, nothing = torch.zeros(num_rows + 1, dtype=torch.int64), torch.zeros(0, dtype=torch.int64)
    return SampleRows(
        slots=torch.arange(num_rows),
        positions=integers(CONTEXT - 1),
        num_prompt_tokens=integers(CONTEXT // 2),
        streams=integers(0),
        seeds=torch.arange(num_rows),
        temperature=floats(temperature),
        top_k=integers(0),
        top_p=floats(top_p),
        min_p=floats(0.0),
        presence_penalty=floats(0.0),
        frequency_penalty=floats(0.0),
        repetition_penalty=floats(1.0),
        bias_offsets=offsets,
        bias_ids=nothing,
        bias_values=torch.zeros(0),
        ban_offsets=offsets,
        ban_ids=nothing,
        allowed_offsets=offsets,
        allowed_ids=nothing,
        bad_word_row_offsets=offsets,
        bad_word_offsets=torch.zeros(1, dtype=torch.int64),
        bad_word_ids=nothing,
        bitmask_rows=integers(-1),
        bitmask=None,
        num_token_ids=vocab,
        num_logprobs=int(num_logprobs),
    )
