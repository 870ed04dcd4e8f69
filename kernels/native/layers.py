"""Arguments of the native per-row operations: checks shapes and dtypes, allocates outputs, calls nothing.

Values (ids, slots, positions) are the caller's: like the table's other operations, these trust them. The structures
hold addresses only: the tensors must stay alive until the call is done.
"""

import ctypes
from collections.abc import Callable

import torch
from torch import Tensor

from kernels.native.program import Rows

Empty = Callable[[tuple[int, ...], torch.dtype], Tensor]

UINT4: torch.dtype = torch.uint4  # type: ignore[attr-defined]  # torch's stubs do not know it
DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.int8: 2, UINT4: 3}
"""``octavo::Dtype``."""

FLOAT_DTYPES = (torch.float32, torch.bfloat16)
MAX_HEAD_SIZE = 1024  # kMaxHeadSize of layers.cpp

_INT, _POINTER, _DOUBLE = ctypes.c_int64, ctypes.c_void_p, ctypes.c_double


class EmbedArgs(ctypes.Structure):
    """``octavo_embed_args`` of layers.h."""

    _fields_ = (
        ("ids", _POINTER),
        ("table", Rows),
        ("out", Rows),
        ("num_rows", _INT),
        ("size", _INT),
        ("table_dtype", _INT),
    )


class RMSNormArgs(ctypes.Structure):
    """``octavo_rms_norm_args`` of layers.h."""

    _fields_ = (
        ("x", Rows),
        ("out", Rows),
        ("weight", _POINTER),
        ("num_rows", _INT),
        ("num_heads", _INT),
        ("size", _INT),
        ("out_dtype", _INT),
        ("eps", _DOUBLE),
    )


class SiluAndMulArgs(ctypes.Structure):
    """``octavo_silu_and_mul_args`` of layers.h."""

    _fields_ = (("gate_up", Rows), ("out", Rows), ("num_rows", _INT), ("size", _INT), ("out_dtype", _INT))


class RotaryArgs(ctypes.Structure):
    """``octavo_rotary_args`` of layers.h."""

    _fields_ = (
        ("x", Rows),
        ("out", Rows),
        ("cos_sin", Rows),
        ("positions", _POINTER),
        ("num_rows", _INT),
        ("num_heads", _INT),
        ("head_size", _INT),
        ("half_size", _INT),
        ("out_dtype", _INT),
    )


class CopyBlocksArgs(ctypes.Structure):
    """``octavo_copy_blocks_args`` of layers.h."""

    _fields_ = (
        ("cache", Rows),
        ("sources", _POINTER),
        ("destinations", _POINTER),
        ("num_rows", _INT),
        ("block_bytes", _INT),
    )


class GatherTokensArgs(ctypes.Structure):
    """``octavo_gather_tokens_args`` of layers.h."""

    _fields_ = (
        ("tokens", Rows),
        ("slots", _POINTER),
        ("positions", _POINTER),
        ("out", _POINTER),
        ("num_rows", _INT),
    )


class StoreTokensArgs(ctypes.Structure):
    """``octavo_store_tokens_args`` of layers.h."""

    _fields_ = (
        ("tokens", Rows),
        ("slots", _POINTER),
        ("positions", _POINTER),
        ("ids", _POINTER),
        ("num_rows", _INT),
        ("num_positions", _INT),
    )


def prepare_embed(ids: Tensor, table: Tensor, empty: Empty) -> tuple[Tensor, EmbedArgs]:
    """``octavo_embed``: ids i64 [T], table [V, D] → f32 [T, D]. TypeError, ValueError: operands it cannot read."""
    check_rows("table", table, FLOAT_DTYPES, 2)
    size = table.shape[1]
    out = empty((len(ids), size), torch.float32)
    address = check_column("ids", ids, torch.int64, len(ids))
    return out, EmbedArgs(address, Rows.of(table), Rows.of(out), len(ids), size, DTYPES[table.dtype])


def prepare_rms_norm(
    x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype, empty: Empty
) -> tuple[Tensor, RMSNormArgs]:
    """``octavo_rms_norm``: x f32 [T, ..., D], weight f32 [D] → ``dtype`` [T, ..., D]. What follows the first dimension
    is contiguous. TypeError, ValueError: operands it cannot read."""
    check_rows("x", x, (torch.float32,), x.dim())
    size = x.shape[-1]
    address = check_column("weight", weight, torch.float32, size)
    out = empty(tuple(x.shape), check_dtype("dtype", dtype, FLOAT_DTYPES))
    num_heads = x[0].numel() // size if len(x) else 1
    args = RMSNormArgs(Rows.of(x), Rows.of(out), address, len(x), num_heads, size, DTYPES[dtype], eps)
    return out, args


def prepare_silu_and_mul(gate_up: Tensor, dtype: torch.dtype, empty: Empty) -> tuple[Tensor, SiluAndMulArgs]:
    """``octavo_silu_and_mul``: f32 [T, 2·I] → ``dtype`` [T, I]. TypeError, ValueError: operands it cannot read."""
    check_rows("gate_up", gate_up, (torch.float32,), 2)
    num_rows, both = gate_up.shape
    if both % 2:
        raise ValueError(f"gate and up are equally wide, so together not {both}")
    out = empty((num_rows, both // 2), check_dtype("dtype", dtype, FLOAT_DTYPES))
    return out, SiluAndMulArgs(Rows.of(gate_up), Rows.of(out), num_rows, both // 2, DTYPES[dtype])


def prepare_rotary(
    x: Tensor, positions: Tensor, cos_sin: Tensor, dtype: torch.dtype, empty: Empty
) -> tuple[Tensor, RotaryArgs]:
    """``octavo_rotary``: x f32 [T, H, D], the heads of a row side by side; positions i64 [T]; cos_sin f32 [L, 2·rot] →
    ``dtype`` [T, H, D]. TypeError, ValueError: operands it cannot read."""
    check_rows("x", x, (torch.float32,), 3)
    num_rows, num_heads, head_size = x.shape
    half_size = check_cos_sin(cos_sin, head_size)
    address = check_column("positions", positions, torch.int64, num_rows)
    out = empty((num_rows, num_heads, head_size), check_dtype("dtype", dtype, FLOAT_DTYPES))
    args = RotaryArgs(
        Rows.of(x),
        Rows.of(out),
        Rows.of(cos_sin),
        address,
        num_rows,
        num_heads,
        head_size,
        half_size,
        DTYPES[dtype],
    )
    return out, args


def prepare_copy_blocks(cache: Tensor, sources: Tensor, destinations: Tensor) -> CopyBlocksArgs:
    """``octavo_copy_blocks``: cache u8 [B, bytes], ids i64 [n]. TypeError, ValueError: operands it cannot read."""
    check_rows("cache", cache, (torch.uint8,), 2)
    addresses = [
        check_column(name, ids, torch.int64, len(sources))
        for name, ids in (("sources", sources), ("destinations", destinations))
    ]
    return CopyBlocksArgs(Rows.of(cache), *addresses, len(sources), cache.shape[1])


def prepare_gather_tokens(
    tokens: Tensor, slots: Tensor, positions: Tensor, empty: Empty
) -> tuple[Tensor, GatherTokensArgs]:
    """``octavo_gather_tokens``: tokens i32 [slots, L], slots and positions i64 [T] → i64 [T]. TypeError, ValueError:
    operands it cannot read."""
    check_rows("tokens", tokens, (torch.int32,), 2)
    num_rows = len(slots)
    addresses = [
        check_column(name, column, torch.int64, num_rows)
        for name, column in (("slots", slots), ("positions", positions))
    ]
    out = empty((num_rows,), torch.int64)
    return out, GatherTokensArgs(Rows.of(tokens), *addresses, out.data_ptr(), num_rows)


def prepare_store_tokens(tokens: Tensor, slots: Tensor, positions: Tensor, ids: Tensor) -> StoreTokensArgs:
    """``octavo_store_tokens``: tokens i32 [slots, L]; slots, positions and ids i64 [T]. TypeError, ValueError: operands
    it cannot read."""
    check_rows("tokens", tokens, (torch.int32,), 2)
    columns = (("slots", slots), ("positions", positions), ("ids", ids))
    addresses = [check_column(name, column, torch.int64, len(slots)) for name, column in columns]
    return StoreTokensArgs(Rows.of(tokens), *addresses, len(slots), tokens.shape[1])


def check_dtype(name: str, dtype: torch.dtype, allowed: tuple[torch.dtype, ...]) -> torch.dtype:
    """Raises TypeError unless ``dtype`` is one of ``allowed``."""
    if dtype not in allowed:
        raise TypeError(f"{name} is {dtype}, not one of {', '.join(map(str, allowed))}")
    return dtype


def check_rows(name: str, tensor: Tensor, dtypes: tuple[torch.dtype, ...], num_dimensions: int) -> None:
    """Rows of any stride, each of them contiguous. Raises TypeError for a dtype, ValueError for a shape or layout."""
    check_dtype(name, tensor.dtype, dtypes)
    if tensor.dim() != num_dimensions or num_dimensions < 2:
        raise ValueError(f"{name} has {tensor.dim()} dimensions, not {max(num_dimensions, 2)}")
    if len(tensor) and not tensor[0].is_contiguous():
        raise ValueError(f"the rows of {name} are not contiguous")


def check_column(name: str, column: Tensor, dtype: torch.dtype, size: int) -> int:
    """The address of ``column`` [size]. Raises TypeError for a dtype, ValueError for a shape or layout."""
    check_dtype(name, column.dtype, (dtype,))
    if tuple(column.shape) != (size,) or not column.is_contiguous():
        raise ValueError(f"{name} is not a contiguous vector of {size}")
    return column.data_ptr()


def check_cos_sin(cos_sin: Tensor, head_size: int) -> int:
    """Half of the rotated part of a head. Raises TypeError or ValueError for a table that does not fit."""
    check_rows("cos_sin", cos_sin, (torch.float32,), 2)
    rotated = cos_sin.shape[1]
    if rotated % 2 or rotated > head_size:
        raise ValueError(f"a table for {rotated} dimensions does not fit heads of {head_size}")
    return rotated // 2
