"""The table of operations: every kernel's signature, shapes, dtypes and contract (design 6 and 7).

A backend (``kernels.reference``, later native and triton) is a module whose ``Ops`` class implements this
protocol; ``load`` finds it by name. Letters: T rows of a step, R sampled rows, S sequences, V vocabulary,
H query heads, G KV heads, D head size, B blocks. Every result row depends on that row's inputs alone, bit for
bit: not on T, on neighbours, on chunking, on the number of threads.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import IntEnum
from importlib import import_module
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

SCALE_BYTES = 4
SCALED_DTYPES = (torch.int8, torch.float8_e4m3fn)
"""Of KV caches that keep a scale for each token and KV head."""


@dataclass(frozen=True, slots=True)
class KVLayout:
    """How a block's bytes hold keys and values: K then V, each [block_size, G, D] in ``dtype``; in int8 and fp8 every
    head of a token is followed by its scale, a float32."""

    block_size: int
    num_kv_heads: int
    head_size: int
    dtype: torch.dtype

    @property
    def layout_id(self) -> str:
        """Names the layout wherever bytes of a block leave this process."""
        return (
            f"kv-bsgd-{str(self.dtype).removeprefix('torch.')}-{self.block_size}-{self.num_kv_heads}-{self.head_size}"
        )

    @property
    def bytes_per_block(self) -> int:
        """Bytes of one block of one layer."""
        return 2 * self.block_size * self.num_kv_heads * self.bytes_per_head

    @property
    def bytes_per_head(self) -> int:
        """Bytes of K, or of V, of one token and head."""
        return self.head_size * self.dtype.itemsize + (SCALE_BYTES if self.is_scaled else 0)

    @property
    def is_scaled(self) -> bool:
        """Whether each head of each token has a scale."""
        return self.dtype in SCALED_DTYPES


@dataclass(frozen=True, slots=True)
class AttentionBatch:
    """Which rows belong to which sequence. Row i attends to positions 0 … positions[i] of its sequence.

    ``query_start`` i32 [S + 1]: rows of sequence s are query_start[s] … query_start[s+1] − 1, in order of
    position. ``block_tables`` i32 [S, ≥ blocks of the longest]. ``positions`` i64 [T]. ``kv_slots`` i64 [T]:
    block · block_size + offset, where each row's own K and V go.
    ``work``: what ``Ops.plan_attention`` found, in the backend's own form.
    """

    query_start: Tensor
    block_tables: Tensor
    positions: Tensor
    kv_slots: Tensor
    work: object = None


@dataclass(frozen=True, slots=True)
class SampleKinds:
    """What at least one row may ask for, as the host knows it: a backend may leave out what no row does."""

    draws: bool = True  # a temperature above 0
    penalties: bool = True
    lists: bool = True  # bias, bans, allowed ids or bad words
    filters: bool = True  # top_k, top_p or min_p


@dataclass(frozen=True, slots=True)
class SampleRows:
    """Per sampled row, [R] each: device row, position of the token drawn, and parameters (design 7.4).

    Sparse lists are offsets i64 [R + 1] into values. ``bans``: ids that may not be drawn now.
    ``bad_words``: offsets [R + 1] into ``bad_word_offsets`` [W + 1] into ids; a word's last id is banned when the
    row's tokens before ``positions`` end with its other ids. ``allowed``: an empty list means all ids.
    ``bitmask``: i32 [M, ceil(V / 32)], bit set = allowed; ``bitmask_rows`` i64 [R], −1 for none.
    ``num_token_ids``: ids from there on have no token and are never drawn.
    """

    slots: Tensor  # i64
    positions: Tensor  # i64: index in prompt + output of the token to be drawn
    num_prompt_tokens: Tensor  # i64
    streams: Tensor  # i64
    seeds: Tensor  # i64, the bits of a u64
    temperature: Tensor  # f32
    top_k: Tensor  # i64, 0: off
    top_p: Tensor  # f32
    min_p: Tensor  # f32
    presence_penalty: Tensor  # f32
    frequency_penalty: Tensor  # f32
    repetition_penalty: Tensor  # f32
    bias_offsets: Tensor
    bias_ids: Tensor
    bias_values: Tensor  # f32
    ban_offsets: Tensor
    ban_ids: Tensor
    allowed_offsets: Tensor
    allowed_ids: Tensor
    bad_word_row_offsets: Tensor
    bad_word_offsets: Tensor
    bad_word_ids: Tensor
    bitmask_rows: Tensor
    bitmask: Tensor | None
    num_token_ids: int
    num_logprobs: int  # the most that any row asks for; −1: none at all
    kinds: SampleKinds = SampleKinds()


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Log-softmax of the raw float32 logits: ``logprobs`` f32 [R], ``ranks`` i64 [R] (1 + number of strictly
    larger logits), ``top_ids`` i64 [R, k] and ``top_logprobs`` f32 [R, k], descending, lower id first on ties."""

    logprobs: Tensor
    ranks: Tensor
    top_ids: Tensor
    top_logprobs: Tensor


@dataclass(frozen=True, slots=True)
class Samples:
    """``token_ids`` i64 [R]; ``is_valid`` bool [R]: false where a raw logit is NaN or +inf, or no id is left."""

    token_ids: Tensor
    is_valid: Tensor
    logprobs: Logprobs | None


class Count(IntEnum):
    """What varies between replays of a recorded step."""

    ROWS = 0
    SEQUENCES = 1
    SAMPLED_ROWS = 2


RECORDED_ROWS = 2
"""Rows of the tensors during a recording: more than one, so that strides mean something."""


class Program(Protocol):
    """A recorded step. ``outputs``: what the trace returned, for the most rows; replays write their first rows."""

    outputs: tuple[Tensor, ...]

    @property
    def num_done(self) -> int:
        """Operations done over all replays; moves during one, and may be read by another thread."""

    def __call__(self, counts: dict[Count, int]) -> None:
        """Run the recorded operations in order, as one call without the GIL."""

    def by_operation(self, name_range: Callable[[str], AbstractContextManager[object]]) -> "Program":
        """The same program, each of its operations a call of its own inside ``name_range(NAME)``: for profiles."""


Quantization = Literal["int8", "int4", "fp8"]

Trace = Callable[[int, Callable[[Count], None]], tuple[Tensor, ...]]
"""(rows of a recording, what the rows of the next operations count) → outputs: runs a step's operations once"""


class PackedLinear(Protocol):
    """A weight in a backend's own layout."""

    @property
    def num_outputs(self) -> int: ...

    @property
    def num_inputs(self) -> int: ...

    @property
    def layout_id(self) -> str: ...


@dataclass(frozen=True, slots=True)
class LinearSpec:
    """A weight [num_outputs, num_inputs] in ``dtype`` and how it is packed: the parameters of ``Ops.pack_linear``."""

    num_outputs: int
    num_inputs: int
    dtype: torch.dtype
    segments: int = 1
    is_gated: bool = False
    quantization: Quantization | None = None


class PackedFormat(Protocol):
    """How a backend's packed weights are kept in a file and come back."""

    version: str  # another one whenever the same weight may be packed into other bytes

    def tensors(self, weight: PackedLinear) -> dict[str, Tensor]:
        """What the weight is made of, by name. Raises TypeError for another backend's weight."""

    def restore(self, spec: LinearSpec, tensors: Mapping[str, Tensor]) -> PackedLinear:
        """The weight of those tensors, which it keeps and reads where they lie, each at a multiple of 64 bytes.
        Raises ValueError or TypeError for tensors that are not those of a weight packed by ``spec``."""


class Ops(Protocol):
    """Every operation of a backend."""

    name: str
    isa: str  # the code path chosen on this host; part of numerics_id
    quantizations: frozenset[Quantization]  # that ``pack_linear`` knows
    kv_dtypes: frozenset[torch.dtype]  # that ``kv_layout`` knows
    packed_format: PackedFormat | None  # None: packing again costs no more than reading what was packed

    def pack_linear(
        self, weight: Tensor, segments: int = 1, *, is_gated: bool = False, quantization: Quantization | None = None
    ) -> PackedLinear:
        """Pack ``weight`` [N, K] (float32 or bfloat16). ``segments`` divides K: each is summed alone, then the
        partial sums are added in a fixed binary tree (design 7.2). ``is_gated``: for ``gated_linear`` alone.

        ``quantization`` int8: weights symmetric with one scale an output; inputs, given in float32 or bfloat16, with
        one scale a row and group of 64 inputs that never crosses a segment; sums exact within a group, groups
        added in order in float32 (design 7.3). int4: weights asymmetric with a scale and a zero an output and group of
        32 inputs, the scale in 4095ths of the output's largest; inputs as for int8, in the same groups of 32.
        fp8: e4m3 weights (largest 448) with one scale an output; e4m3 inputs with one scale a row and group of 128
        inputs that never crosses a segment; groups summed alone and added in order in float32.

        Raises ValueError for one that is not in ``quantizations``."""

    def linear(self, x: Tensor, weight: PackedLinear, bias: Tensor | None = None) -> Tensor:
        """x [T, K] in the weight's dtype, bias f32 [N] → f32 [T, N]; K is summed in order within a segment."""

    def linear_add(self, x: Tensor, weight: PackedLinear, bias: Tensor | None, residual: Tensor) -> Tensor:
        """linear(x, weight, bias) + residual, residual f32 [T, N]: the same bits as the two one after the other."""

    def gated_linear(self, x: Tensor, weight: PackedLinear, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
        """silu_and_mul(linear(x, weight, bias), dtype): the same bits as the two one after the other."""

    def embed(self, ids: Tensor, table: Tensor) -> Tensor:
        """ids i64 [T], table [V, D] → f32 [T, D]."""

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
        """x f32 [..., D], weight f32 [D] → x / sqrt(mean(x²) + eps) · weight, computed in f32, in ``dtype``."""

    def silu_and_mul(self, gate_up: Tensor, dtype: torch.dtype) -> Tensor:
        """gate_up f32 [T, 2·I], gate first → silu(gate) · up, computed in f32, in ``dtype`` [T, I]."""

    def rotary(self, x: Tensor, positions: Tensor, cos_sin: Tensor, dtype: torch.dtype) -> Tensor:
        """x f32 [T, H, D], positions i64 [T], cos_sin f32 [L, 2·rot] (cos then sin; rot = rotated size / 2) →
        ``dtype`` [T, H, D]: the half-split (NeoX) rotation of the first 2·rot entries of each head."""

    def kv_layout(self, block_size: int, num_kv_heads: int, head_size: int, dtype: torch.dtype) -> KVLayout:
        """How this backend lays out a block. Raises ValueError or TypeError for one that it cannot."""

    def write_kv(self, k: Tensor, v: Tensor, cache: Tensor, layout: KVLayout, kv_slots: Tensor) -> None:
        """Round k, v [T, G, D] to the layout's dtype and put them at ``kv_slots`` of cache u8 [B, bytes_per_block]."""

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
        """q f32 [T, H, D], k and v f32 [T, G, D], all perhaps slices of one buffer: ``rms_norm`` of q's and k's heads
        if there are ``norms`` (weights f32 [D] of q and k, eps), ``rotary`` of both, ``write_kv`` → q in ``dtype``.
        The same bits as the parts one after the other."""

    def plan_attention(self, batch: AttentionBatch) -> AttentionBatch:
        """The batch with what every layer's attention would find out anew; once a step, before the first layer."""

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
        """q [T, H, D] → ``dtype`` [T, H, D]; the recurrence of design 7.1. ``window``: a row at p attends to
        p − window + 1 … p. ``soft_cap``: scores s, scaled, become soft_cap · tanh(s / soft_cap)."""

    def copy_blocks(self, cache: Tensor, sources: Tensor, destinations: Tensor) -> None:
        """cache[destinations] = cache[sources], all reads before all writes; i64 [n]."""

    def gather_tokens(self, tokens: Tensor, slots: Tensor, positions: Tensor) -> Tensor:
        """tokens i32 [slots, L] → i64 [T]."""

    def store_tokens(self, tokens: Tensor, slots: Tensor, positions: Tensor, ids: Tensor) -> None:
        """tokens[slots, positions] = ids; rows whose position is outside the table are dropped."""

    def sample(self, logits: Tensor, tokens: Tensor, rows: SampleRows) -> Samples:
        """logits f32 [R, V] (not changed), tokens i32 [slots, L]: penalties count a row's own tokens before
        its position. Order and formulas: design 7.4."""

    def logprobs(self, logits: Tensor, ids: Tensor, num_top: int) -> Logprobs:
        """logits f32 [R, V], ids i64 [R]."""

    def record(self, trace: Trace, most: dict[Count, int]) -> Program | None:
        """Record the operations that ``trace`` calls, for at most ``most`` of each. Inputs, caches and weights are
        found where they lay during the trace. None: this backend runs operations one by one only."""


def load(name: str) -> Ops:
    """The backend ``kernels.<name>``. Raises ModuleNotFoundError for an unknown one."""
    module: Any = import_module(f"kernels.{name}")
    ops: Ops = module.create()
    return ops
