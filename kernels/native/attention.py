"""Arguments of the native attention and KV writes, and the layout of a KV block that they share.

Checks shapes and dtypes, allocates outputs, calls nothing. Values (positions, slots, block tables) are the caller's.
The structures hold addresses only: the tensors must stay alive until the call is done.
"""

import ctypes
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.native.layers import (
    DTYPES,
    FLOAT_DTYPES,
    MAX_HEAD_SIZE,
    Empty,
    check_column,
    check_cos_sin,
    check_dtype,
    check_rows,
)
from kernels.native.program import Rows
from kernels.ops import AttentionBatch, KVLayout

_INT, _POINTER, _DOUBLE = ctypes.c_int64, ctypes.c_void_p, ctypes.c_double
_UNIT = 16  # tokens that lie together
_SCALE_BYTES = 8  # int8: a float32 each for K and V, a token and head


@dataclass(frozen=True, slots=True)
class NativeKVLayout(KVLayout):
    """How a block's bytes hold keys and values for the native kernels: kv_layout.h. ``dtype``: float32, bfloat16 or
    int8, which has a scale for each token and KV head. Raises TypeError or ValueError for one that does not exist."""

    def __post_init__(self) -> None:
        check_layout(self)

    @property
    def layout_id(self) -> str:
        """Names the layout wherever bytes of a block leave this process."""
        dtype = str(self.dtype).removeprefix("torch.")
        return f"kv-units16-{dtype}-{self.block_size}-{self.num_kv_heads}-{self.head_size}"

    @property
    def bytes_per_block(self) -> int:
        """Bytes of one block of one layer."""
        return block_bytes(self)


class WriteKVArgs(ctypes.Structure):
    """``octavo_write_kv_args`` of layers.h."""

    _fields_ = (
        ("k", Rows),
        ("v", Rows),
        ("cache", _POINTER),
        ("kv_slots", _POINTER),
        ("num_rows", _INT),
        ("num_kv_heads", _INT),
        ("head_size", _INT),
        ("block_size", _INT),
        ("kv_dtype", _INT),
        ("k_dtype", _INT),
        ("v_dtype", _INT),
    )


class RotaryWriteKVArgs(ctypes.Structure):
    """``octavo_rotary_write_kv_args`` of layers.h."""

    _fields_ = (
        ("q", Rows),
        ("k", Rows),
        ("v", Rows),
        ("q_out", Rows),
        ("cos_sin", Rows),
        ("q_norm", _POINTER),
        ("k_norm", _POINTER),
        ("positions", _POINTER),
        ("cache", _POINTER),
        ("kv_slots", _POINTER),
        ("num_rows", _INT),
        ("num_heads", _INT),
        ("num_kv_heads", _INT),
        ("head_size", _INT),
        ("half_size", _INT),
        ("block_size", _INT),
        ("kv_dtype", _INT),
        ("out_dtype", _INT),
        ("eps", _DOUBLE),
    )


class PagedAttentionArgs(ctypes.Structure):
    """``octavo_paged_attention_args`` of attention.h."""

    _fields_ = (
        ("q", Rows),
        ("out", Rows),
        ("cache", _POINTER),
        ("query_start", _POINTER),
        ("block_tables", _POINTER),
        ("block_table_stride", _INT),
        ("positions", _POINTER),
        ("num_rows", _INT),
        ("num_sequences", _INT),
        ("num_heads", _INT),
        ("num_kv_heads", _INT),
        ("head_size", _INT),
        ("block_size", _INT),
        ("kv_dtype", _INT),
        ("q_dtype", _INT),
        ("out_dtype", _INT),
        ("window", _INT),
        ("scale", _DOUBLE),
        ("soft_cap", _DOUBLE),
    )


def prepare_write_kv(k: Tensor, v: Tensor, cache: Tensor, layout: KVLayout, kv_slots: Tensor) -> WriteKVArgs:
    """``octavo_write_kv``: k, v f32 or bf16 [T, G, D], the heads of a row side by side; cache u8 [B, bytes]; kv_slots
    i64 [T]. TypeError, ValueError: operands it cannot read."""
    address = check_cache(cache, layout)
    for name, tensor in (("k", k), ("v", v)):
        check_heads(name, tensor, FLOAT_DTYPES, (len(k), layout.num_kv_heads, layout.head_size))
    return WriteKVArgs(
        Rows.of(k),
        Rows.of(v),
        address,
        check_column("kv_slots", kv_slots, torch.int64, len(k)),
        len(k),
        layout.num_kv_heads,
        layout.head_size,
        layout.block_size,
        DTYPES[layout.dtype],
        DTYPES[k.dtype],
        DTYPES[v.dtype],
    )


def prepare_rotary_write_kv(
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
    empty: Empty,
) -> tuple[Tensor, RotaryWriteKVArgs]:
    """``octavo_rotary_write_kv``: q f32 [T, H, D], k and v f32 [T, G, D], the heads of a row side by side; ``norms``:
    weights f32 [D] of q and k, eps → q in ``dtype``. TypeError, ValueError: operands it cannot read."""
    address = check_cache(cache, layout)
    num_rows, size = len(q), layout.head_size
    check_heads("q", q, (torch.float32,), (num_rows, q.shape[1], size))
    for name, tensor in (("k", k), ("v", v)):
        check_heads(name, tensor, (torch.float32,), (num_rows, layout.num_kv_heads, size))
    weights: list[int | None] = [None, None]
    if norms is not None:
        weights = [check_column("norm", weight, torch.float32, size) for weight in norms[:2]]
    q_out = empty(tuple(q.shape), check_dtype("dtype", dtype, FLOAT_DTYPES))
    args = RotaryWriteKVArgs(
        Rows.of(q),
        Rows.of(k),
        Rows.of(v),
        Rows.of(q_out),
        Rows.of(cos_sin),
        *weights,
        check_column("positions", positions, torch.int64, num_rows),
        address,
        check_column("kv_slots", kv_slots, torch.int64, num_rows),
        num_rows,
        q.shape[1],
        layout.num_kv_heads,
        size,
        check_cos_sin(cos_sin, size),
        layout.block_size,
        DTYPES[layout.dtype],
        DTYPES[dtype],
        norms[2] if norms is not None else 0.0,
    )
    return q_out, args


def prepare_paged_attention(
    q: Tensor,
    cache: Tensor,
    layout: KVLayout,
    batch: AttentionBatch,
    scale: float,
    window: int | None,
    dtype: torch.dtype,
    empty: Empty,
    soft_cap: float | None = None,
) -> tuple[Tensor, PagedAttentionArgs]:
    """``octavo_paged_attention``: q f32 or bf16 [T, H, D], the heads of a row side by side → ``dtype`` [T, H, D].

    TypeError, ValueError: operands it cannot read, a scale or cap that is not positive, a window below 1.
    """
    address = check_cache(cache, layout)
    num_rows, num_heads, num_sequences = len(q), q.shape[1], len(batch.block_tables)
    check_heads("q", q, FLOAT_DTYPES, (num_rows, num_heads, layout.head_size))
    if num_heads % layout.num_kv_heads:
        raise ValueError(f"{layout.num_kv_heads} KV heads do not divide {num_heads} query heads")
    if not 0 < scale < math.inf:
        raise ValueError(f"the scale is {scale}, not positive")
    if soft_cap is not None and not 0 < soft_cap < math.inf:
        raise ValueError(f"the soft cap is {soft_cap}, not positive")
    if window is not None and window < 1:
        raise ValueError(f"the window is {window}, not positive")
    check_rows("block_tables", batch.block_tables, (torch.int32,), 2)
    out = empty(tuple(q.shape), check_dtype("dtype", dtype, FLOAT_DTYPES))
    args = PagedAttentionArgs(
        Rows.of(q),
        Rows.of(out),
        address,
        check_column("query_start", batch.query_start, torch.int32, num_sequences + 1),
        batch.block_tables.data_ptr(),
        batch.block_tables.stride(0),
        check_column("positions", batch.positions, torch.int64, num_rows),
        num_rows,
        num_sequences,
        num_heads,
        layout.num_kv_heads,
        layout.head_size,
        layout.block_size,
        DTYPES[layout.dtype],
        DTYPES[q.dtype],
        DTYPES[dtype],
        window or 0,
        scale,
        soft_cap or 0.0,
    )
    return out, args


def block_bytes(layout: KVLayout) -> int:
    """Bytes of one block of one layer: as many as the numbers take, and for int8 their scales."""
    num_heads = layout.block_size * layout.num_kv_heads
    scale_bytes = num_heads * _SCALE_BYTES if layout.dtype == torch.int8 else 0
    return 2 * num_heads * layout.head_size * layout.dtype.itemsize + scale_bytes


def check_layout(layout: KVLayout) -> None:
    """Raises TypeError for a dtype, ValueError for a size that the native kernels have no layout for."""
    check_dtype("the KV cache's dtype", layout.dtype, tuple(DTYPES))
    if layout.block_size < 1 or layout.block_size % _UNIT:
        raise ValueError(f"a block size of {layout.block_size} is no multiple of {_UNIT}")
    if not 0 < layout.head_size <= MAX_HEAD_SIZE or (layout.head_size % 2 and layout.dtype != torch.float32):
        raise ValueError(f"a head size of {layout.head_size} is not supported with {layout.dtype}")


def check_cache(cache: Tensor, layout: KVLayout) -> int:
    """The address of ``cache`` u8 [B, bytes of a block]. Raises TypeError or ValueError for another one."""
    check_layout(layout)
    check_dtype("cache", cache.dtype, (torch.uint8,))
    if cache.dim() != 2 or cache.shape[1] != block_bytes(layout) or not cache.is_contiguous():
        raise ValueError(f"a cache of shape {tuple(cache.shape)} does not hold blocks of {block_bytes(layout)} bytes")
    return cache.data_ptr()


def check_heads(name: str, heads: Tensor, dtypes: tuple[torch.dtype, ...], shape: tuple[int, int, int]) -> None:
    """Rows of any stride, the heads of each side by side. Raises TypeError or ValueError."""
    check_rows(name, heads, dtypes, 3)
    if tuple(heads.shape) != shape:
        raise ValueError(f"{name} has the shape {tuple(heads.shape)}, not {shape}")
