"""The operations of well-known models at the sizes of decode and prefill, on meta tensors: what is compiled ahead.

Knows the table of operations and how a decoder calls it; no kernel, and no weight.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kernels.ops import AttentionBatch, KVLayout, Ops, Quantization, SampleKinds, SampleRows

DECODE_ROWS = (1, 32, 256)
PREFILL_ROWS = 2048
MAX_MODEL_LEN = 8192
BLOCK_SIZE = 16
NUM_BLOCKS = 65536
NUM_SLOTS = 512
NUM_TOP = 20
MOST_SEGMENTS, SEGMENT_UNIT = 8, 32


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of a decoder."""

    name: str
    hidden: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    intermediate: int
    vocab_size: int

    @property
    def num_segments(self) -> int:
        """Of linears whose inputs may be split among devices (design 7.2)."""
        units = self.intermediate // SEGMENT_UNIT
        return max(s for s in range(1, MOST_SEGMENTS + 1) if self.num_heads % s == 0 and units % s == 0)


SMOLLM2_135M = ModelShape("SmolLM2-135M", 576, 9, 3, 64, 1536, 49152)
LLAMA_1B = ModelShape("Llama-3.2-1B", 2048, 32, 8, 64, 8192, 128256)
LLAMA_8B = ModelShape("Llama-3.1-8B", 4096, 32, 8, 128, 14336, 128256)


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """A model's dtype, its linears' quantization and its cache's dtype."""

    dtype: torch.dtype
    quantization: Quantization | None
    kv_dtype: torch.dtype


PLAIN = Arithmetic(torch.bfloat16, None, torch.bfloat16)
INT8 = Arithmetic(torch.bfloat16, "int8", torch.int8)
FP8 = Arithmetic(torch.bfloat16, "fp8", torch.float8_e4m3fn)
SINGLE = Arithmetic(torch.float32, None, torch.float32)


@dataclass(frozen=True, slots=True)
class Case:
    """A model at some sizes. ``has_variants``: biases, windows and soft caps, norms of heads, and rows of every kind
    are called for, too. ``invariance``: of the backend, each in turn."""

    shape: ModelShape
    arithmetic: Arithmetic
    rows: tuple[int, ...] = (*DECODE_ROWS, PREFILL_ROWS)
    has_variants: bool = False
    invariance: tuple[bool, ...] = (False,)


QUICK_CASES = (Case(SMOLLM2_135M, PLAIN, (32, PREFILL_ROWS), invariance=(True,)),)
MAIN_CASES = (
    *QUICK_CASES,
    Case(SMOLLM2_135M, PLAIN, has_variants=True),
    Case(LLAMA_1B, PLAIN, (1, PREFILL_ROWS)),
    Case(LLAMA_8B, PLAIN, (1, 32, PREFILL_ROWS), invariance=(False, True)),
    Case(LLAMA_8B, INT8, (32, PREFILL_ROWS)),
    Case(LLAMA_8B, FP8, (32, PREFILL_ROWS)),
    Case(SMOLLM2_135M, SINGLE, (1, PREFILL_ROWS)),
)
ALL_CASES = tuple(
    Case(shape, arithmetic, has_variants=True, invariance=(False, True))
    for shape in (SMOLLM2_135M, LLAMA_1B, LLAMA_8B)
    for arithmetic in (PLAIN, INT8, FP8, SINGLE)
)


def call_all(ops: Ops, case: Case) -> None:
    """Every operation as a decoder calls it, on meta tensors, except those that ``ops`` has no quantization or cache
    dtype for."""
    quantization, kv_dtype = case.arithmetic.quantization, case.arithmetic.kv_dtype
    if quantization is None or quantization in ops.quantizations:
        _call_linears(ops, case)
    for num_rows in case.rows:
        _call_layers(ops, case.shape, case.arithmetic.dtype, num_rows)
        if kv_dtype in ops.kv_dtypes:
            _call_attention(ops, case, num_rows)
        if num_rows != PREFILL_ROWS:
            _call_sampling(ops, case, num_rows)
    if kv_dtype in ops.kv_dtypes:
        _call_memory(ops, case)


def _call_linears(ops: Ops, case: Case) -> None:
    shape, segments = case.shape, case.shape.num_segments
    dtype, quantization = case.arithmetic.dtype, case.arithmetic.quantization
    q_size = shape.num_heads * shape.head_size
    qkv_size = q_size + 2 * shape.num_kv_heads * shape.head_size

    def weight(num_outputs: int, num_inputs: int) -> Tensor:
        return _empty(num_outputs, num_inputs, dtype=dtype)

    qkv = ops.pack_linear(weight(qkv_size, shape.hidden), quantization=quantization)
    output = ops.pack_linear(weight(shape.hidden, q_size), segments, quantization=quantization)
    gate_up = ops.pack_linear(weight(2 * shape.intermediate, shape.hidden), is_gated=True, quantization=quantization)
    down = ops.pack_linear(weight(shape.hidden, shape.intermediate), segments, quantization=quantization)
    head = ops.pack_linear(weight(shape.vocab_size, shape.hidden), quantization=quantization)
    for num_rows in case.rows:
        x = _empty(num_rows, shape.hidden, dtype=dtype)
        residual = _empty(num_rows, shape.hidden)
        ops.linear(x, qkv)
        if case.has_variants:
            ops.linear(x, qkv, _empty(qkv_size))
        ops.linear_add(_empty(num_rows, q_size, dtype=dtype), output, None, residual)
        ops.linear_add(_empty(num_rows, shape.intermediate, dtype=dtype), down, None, residual)
        ops.gated_linear(x, gate_up, None, dtype)
        if num_rows != PREFILL_ROWS:
            ops.linear(x, head)


def _call_layers(ops: Ops, shape: ModelShape, dtype: torch.dtype, num_rows: int) -> None:
    residual = _empty(num_rows, shape.hidden)
    ops.embed(_empty(num_rows, dtype=torch.int64), _empty(shape.vocab_size, shape.hidden, dtype=dtype))
    ops.embed(_empty(num_rows, dtype=torch.int64), residual)  # the rows whose logits are wanted
    ops.rms_norm(residual, _empty(shape.hidden), 1e-5, dtype)
    ops.silu_and_mul(_empty(num_rows, 2 * shape.intermediate), dtype)
    q = _empty(num_rows, shape.num_heads, shape.head_size)
    ops.rotary(q, _empty(num_rows, dtype=torch.int64), _empty(MAX_MODEL_LEN, shape.head_size), dtype)


def _call_attention(ops: Ops, case: Case, num_rows: int) -> None:
    shape, dtype, head_size = case.shape, case.arithmetic.dtype, case.shape.head_size
    layout, cache = _make_cache(ops, case)
    sizes = [shape.num_heads, shape.num_kv_heads, shape.num_kv_heads]
    q, k, v = torch.split(_empty(num_rows, sum(sizes), head_size), sizes, dim=1)
    cos_sin = _empty(MAX_MODEL_LEN, head_size)
    norms = (_empty(head_size), _empty(head_size), 1e-6)
    num_sequences = 1 if num_rows == PREFILL_ROWS else num_rows
    batch = AttentionBatch(
        query_start=_empty(num_sequences + 1, dtype=torch.int32),
        block_tables=_empty(num_sequences, MAX_MODEL_LEN // BLOCK_SIZE, dtype=torch.int32),
        positions=_empty(num_rows, dtype=torch.int64),
        kv_slots=_empty(num_rows, dtype=torch.int64),
    )
    ops.write_kv(k.to(dtype), v.to(dtype), cache, layout, batch.kv_slots)
    for each in (None, norms) if case.has_variants else (None,):
        ops.rotary_write_kv(q, k, v, each, batch.positions, cos_sin, cache, layout, batch.kv_slots, dtype)
    batch = ops.plan_attention(batch)
    query, scale = _empty(num_rows, shape.num_heads, head_size, dtype=dtype), head_size**-0.5
    ops.paged_attention(query, cache, layout, batch, scale, None, dtype)
    if case.has_variants:
        ops.paged_attention(query, cache, layout, batch, scale, 4096, dtype)
        ops.paged_attention(query, cache, layout, batch, scale, None, dtype, 50.0)


def _call_sampling(ops: Ops, case: Case, num_rows: int) -> None:
    vocab_size = case.shape.vocab_size
    logits = _empty(num_rows, vocab_size)
    tokens = _empty(NUM_SLOTS, MAX_MODEL_LEN, dtype=torch.int32)
    plain = _sample_rows(vocab_size, num_rows)
    none = SampleKinds(draws=False, penalties=False, lists=False, filters=False)
    bitmask = _empty(num_rows, -(-vocab_size // 32), dtype=torch.int32)
    some = (
        replace(plain, kinds=none),
        replace(plain, kinds=replace(none, draws=True)),
        replace(plain, kinds=replace(none, draws=True, filters=True)),
        plain,
    )
    for rows in (*(some if case.has_variants else ()), replace(plain, bitmask=bitmask, num_logprobs=NUM_TOP)):
        ops.sample(logits, tokens, rows)
    for num_top in (0, NUM_TOP):
        ops.logprobs(logits, _empty(num_rows, dtype=torch.int64), num_top)


def _call_memory(ops: Ops, case: Case) -> None:
    _, cache = _make_cache(ops, case)
    tokens = _empty(NUM_SLOTS, MAX_MODEL_LEN, dtype=torch.int32)
    for num_rows in case.rows:
        index = _empty(num_rows, dtype=torch.int64)
        ops.copy_blocks(cache, index, index)
        ops.gather_tokens(tokens, index, index)
        ops.store_tokens(tokens, index, index, index)


def _make_cache(ops: Ops, case: Case) -> tuple[KVLayout, Tensor]:
    layout = ops.kv_layout(BLOCK_SIZE, case.shape.num_kv_heads, case.shape.head_size, case.arithmetic.kv_dtype)
    return layout, _empty(NUM_BLOCKS, layout.bytes_per_block, dtype=torch.uint8)


def _sample_rows(vocab_size: int, num_rows: int) -> SampleRows:
    integers, floats = _empty(num_rows, dtype=torch.int64), _empty(num_rows)
    offsets, ids = _empty(num_rows + 1, dtype=torch.int64), _empty(8 * num_rows, dtype=torch.int64)
    return SampleRows(
        slots=integers,
        positions=integers,
        num_prompt_tokens=integers,
        streams=integers,
        seeds=integers,
        temperature=floats,
        top_k=integers,
        top_p=floats,
        min_p=floats,
        presence_penalty=floats,
        frequency_penalty=floats,
        repetition_penalty=floats,
        bias_offsets=offsets,
        bias_ids=ids,
        bias_values=_empty(len(ids)),
        ban_offsets=offsets,
        ban_ids=ids,
        allowed_offsets=offsets,
        allowed_ids=ids,
        bad_word_row_offsets=offsets,
        bad_word_offsets=_empty(len(ids) + 1, dtype=torch.int64),
        bad_word_ids=ids,
        bitmask_rows=integers,
        bitmask=None,
        num_token_ids=vocab_size,
        num_logprobs=-1,
    )


def _empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")
