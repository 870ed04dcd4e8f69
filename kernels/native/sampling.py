"""Arguments of the native sampler and logprobs: checks shapes and dtypes, allocates outputs, calls nothing.

Values (slots, ids, offsets) are the caller's: like the table's other operations, these trust them. The structures
hold addresses only: logits, tokens and rows must stay alive until the call is done.
"""

import ctypes
from collections.abc import Callable

import torch
from torch import Tensor

from kernels.native.program import Rows
from kernels.ops import Logprobs, SampleRows, Samples

Empty = Callable[[tuple[int, ...], torch.dtype], Tensor]

_I64, _F32, _I32 = torch.int64, torch.float32, torch.int32
_INT, _POINTER = ctypes.c_int64, ctypes.c_void_p

_COLUMNS = (
    ("slots", _I64),
    ("positions", _I64),
    ("num_prompt_tokens", _I64),
    ("streams", _I64),
    ("seeds", _I64),
    ("temperature", _F32),
    ("top_k", _I64),
    ("top_p", _F32),
    ("min_p", _F32),
    ("presence_penalty", _F32),
    ("frequency_penalty", _F32),
    ("repetition_penalty", _F32),
)
_LISTS = (
    ("bias_offsets", _I64),
    ("bias_ids", _I64),
    ("bias_values", _F32),
    ("ban_offsets", _I64),
    ("ban_ids", _I64),
    ("allowed_offsets", _I64),
    ("allowed_ids", _I64),
    ("bad_word_row_offsets", _I64),
    ("bad_word_offsets", _I64),
    ("bad_word_ids", _I64),
)
_ROW_OFFSETS = frozenset({"bias_offsets", "ban_offsets", "allowed_offsets", "bad_word_row_offsets"})
_OUTPUTS = ("logprobs", "ranks", "top_ids", "top_logprobs")


class LogprobsArgs(ctypes.Structure):
    """``octavo_logprobs_args`` of sampling_args.h."""

    _fields_ = (
        ("num_rows", _INT),
        ("vocab_size", _INT),
        ("num_top", _INT),
        ("logits", Rows),
        ("ids", _POINTER),
        *((name, _POINTER) for name in _OUTPUTS),
    )


class SampleArgs(ctypes.Structure):
    """``octavo_sample_args`` of sampling_args.h."""

    _fields_ = (
        ("num_rows", _INT),
        ("vocab_size", _INT),
        ("num_token_ids", _INT),
        ("num_top", _INT),
        ("logits", Rows),
        ("tokens", Rows),
        ("max_tokens", _INT),
        *((name, _POINTER) for name, _ in _COLUMNS),
        *((name, _POINTER) for name, _ in _LISTS),
        ("bitmask_rows", _POINTER),
        ("bitmask", Rows),
        ("token_ids", _POINTER),
        ("is_valid", _POINTER),
        *((name, _POINTER) for name in _OUTPUTS),
    )


def prepare_sample(logits: Tensor, tokens: Tensor, rows: SampleRows, empty: Empty) -> tuple[Samples, SampleArgs]:
    """The arguments of ``octavo_sample`` for logits f32 [R, V] and tokens i32 [slots, L], and where results will be.

    Raises TypeError for a wrong dtype, ValueError for a wrong shape, a layout that the kernel cannot read, or a row
    that names a bitmask where there is none.
    """
    _check_matrix("logits", logits, _F32)
    _check_matrix("tokens", tokens, _I32)
    num_rows, vocab_size = logits.shape
    num_top = min(max(rows.num_logprobs, -1), vocab_size)
    samples = Samples(
        empty((num_rows,), _I64),
        empty((num_rows,), torch.bool),
        _empty_logprobs(num_rows, num_top, empty) if num_top >= 0 else None,
    )
    args = SampleArgs(
        num_rows,
        vocab_size,
        min(max(rows.num_token_ids, 0), vocab_size),
        num_top,
        Rows.of(logits),
        Rows.of(tokens),
        tokens.shape[1],
        *_columns(rows, num_rows),
        *_lists(rows, num_rows),
        _column("bitmask_rows", rows.bitmask_rows, _I64, num_rows),
        _bitmask(rows, vocab_size),
        samples.token_ids.data_ptr(),
        samples.is_valid.data_ptr(),
        *_addresses(samples.logprobs),
    )
    return samples, args


def prepare_logprobs(logits: Tensor, ids: Tensor, num_top: int, empty: Empty) -> tuple[Logprobs, LogprobsArgs]:
    """The arguments of ``octavo_logprobs`` for logits f32 [R, V] and ids i64 [R], and where its results will be.

    Raises TypeError for a wrong dtype, ValueError for a wrong shape or a layout that the kernel cannot read.
    """
    _check_matrix("logits", logits, _F32)
    num_rows, vocab_size = logits.shape
    num_top = min(num_top, vocab_size)
    if num_top < 0:
        raise ValueError(f"num_top must be at least 0, not {num_top}")
    address = _column("ids", ids, _I64, num_rows)
    logprobs = _empty_logprobs(num_rows, num_top, empty)
    args = LogprobsArgs(num_rows, vocab_size, num_top, Rows.of(logits), address, *_addresses(logprobs))
    return logprobs, args


def _empty_logprobs(num_rows: int, num_top: int, empty: Empty) -> Logprobs:
    shape, top_shape = (num_rows,), (num_rows, num_top)
    return Logprobs(empty(shape, _F32), empty(shape, _I64), empty(top_shape, _I64), empty(top_shape, _F32))


def _addresses(logprobs: Logprobs | None) -> tuple[int, int, int, int]:
    if logprobs is None:
        return 0, 0, 0, 0
    return (
        logprobs.logprobs.data_ptr(),
        logprobs.ranks.data_ptr(),
        logprobs.top_ids.data_ptr(),
        logprobs.top_logprobs.data_ptr(),
    )


def _columns(rows: SampleRows, num_rows: int) -> list[int]:
    return [_column(name, getattr(rows, name), dtype, num_rows) for name, dtype in _COLUMNS]


def _lists(rows: SampleRows, num_rows: int) -> list[int]:
    addresses = []
    for name, dtype in _LISTS:
        values = getattr(rows, name)
        addresses.append(_column(name, values, dtype, num_rows + 1 if name in _ROW_OFFSETS else None))
    return addresses


def _column(name: str, values: Tensor, dtype: torch.dtype, length: int | None) -> int:
    """The address of a contiguous vector; ``length`` None: any."""
    if values.dtype != dtype:
        raise TypeError(f"{name} must be {dtype}, not {values.dtype}")
    shape = values.shape  # len() of a tensor is slow
    if len(shape) != 1 or (length is not None and shape[0] != length) or not values.is_contiguous():
        raise ValueError(
            f"{name} must be a contiguous vector of {'some' if length is None else length} entries, not {tuple(shape)}"
        )
    return values.data_ptr()


def _bitmask(rows: SampleRows, vocab_size: int) -> Rows:
    bitmask = rows.bitmask
    if bitmask is None:
        if max(rows.bitmask_rows.tolist(), default=-1) >= 0:
            raise ValueError("a row names a bitmask, but there is none")
        return Rows(0, 0)
    _check_matrix("bitmask", bitmask, _I32)
    if bitmask.shape[1] * 32 < vocab_size:
        raise ValueError(f"the bitmask has {bitmask.shape[1]} words a row, too few for {vocab_size} ids")
    return Rows.of(bitmask)


def _check_matrix(name: str, values: Tensor, dtype: torch.dtype) -> None:
    if values.dtype != dtype:
        raise TypeError(f"{name} must be {dtype}, not {values.dtype}")
    if values.dim() != 2 or (values.shape[1] > 1 and values.stride(1) != 1):
        raise ValueError(f"{name} must have two dimensions, the last contiguous, not {tuple(values.shape)}")
