"""Launches of the kernels that adjust logits. Raw logits are not changed: rows that ask for it are copied first."""

from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

from kernels.ops import SampleRows
from kernels.triton.jit import adjustments as kernels
from kernels.triton.launch import launch
from kernels.triton.sampling_chunks import NUM_WARPS, Chunks

MOST_PARTS = 8
"""Programs that share a row's history and lists."""
PART = 256
WARPS_OF_LISTS = 4


@dataclass(frozen=True, slots=True)
class LogitsSource:
    """Where the sampler reads: raw logits f32 [R, V], or for rows that ``is_adjusted`` i32 [R] names ``adjusted`` f32
    [R, num_ids]. Without adjusted rows the two are only in the arguments' places."""

    logits: Tensor
    adjusted: Tensor
    is_adjusted: Tensor
    num_ids: int
    has_adjusted: bool

    @property
    def arguments(self) -> tuple[Any, ...]:
        """How every kernel's parameters begin."""
        return self.logits, self.logits.stride(0), self.adjusted, self.is_adjusted, self.num_ids


def adjust(logits: Tensor, tokens: Tensor, rows: SampleRows, num_ids: int, chunks: Chunks) -> LogitsSource:
    """Penalties, bias and masks. Raises ValueError for a bitmask with too few words."""
    has_penalties, has_lists = rows.kinds.penalties, rows.kinds.lists
    has_bitmask = rows.bitmask is not None
    if not (has_penalties or has_lists or has_bitmask):
        return LogitsSource(logits, logits, logits, num_ids, has_adjusted=False)
    num_rows = logits.shape[0]
    adjusted = logits.new_empty(num_rows, num_ids)
    is_adjusted = logits.new_empty(num_rows, dtype=torch.int32)
    counts = logits.new_empty(num_rows, num_ids, dtype=torch.int32) if has_penalties else is_adjusted
    bitmask = is_adjusted.unsqueeze(1) if rows.bitmask is None else rows.bitmask
    if has_bitmask and bitmask.shape[1] * 32 < num_ids:
        raise ValueError(f"the bitmask has {bitmask.shape[1]} words a row, too few for {num_ids} ids")
    history = (tokens, tokens.stride(0), tokens.shape[1], rows.slots, rows.positions)
    penalties = (rows.repetition_penalty, rows.frequency_penalty, rows.presence_penalty)
    masks = (rows.bitmask_rows, bitmask, bitmask.stride(0))
    parts = max(1, min(MOST_PARTS, triton.cdiv(tokens.shape[1], PART)))
    launch(
        kernels.copy_rows,
        (num_rows, chunks.count),
        logits,
        logits.stride(0),
        adjusted,
        is_adjusted,
        counts,
        num_ids,
        *history,
        *penalties,
        rows.bias_offsets,
        rows.ban_offsets,
        rows.allowed_offsets,
        rows.bad_word_row_offsets,
        *masks,
        num_warps=NUM_WARPS,
        HAS_PENALTIES=has_penalties,
        HAS_LISTS=has_lists,
        HAS_BITMASK=has_bitmask,
        CHUNK=chunks.size,
    )
    if has_penalties or has_lists:
        launch(
            kernels.count_and_allow,
            (num_rows, parts),
            logits,
            logits.stride(0),
            adjusted,
            counts,
            num_ids,
            *history,
            rows.num_prompt_tokens,
            *penalties,
            rows.allowed_offsets,
            rows.allowed_ids,
            *masks,
            num_warps=WARPS_OF_LISTS,
            HAS_PENALTIES=has_penalties,
            HAS_LISTS=has_lists,
            HAS_BITMASK=has_bitmask,
        )
    if has_penalties:
        launch(
            kernels.penalize,
            (num_rows, parts),
            adjusted,
            counts,
            num_ids,
            *history,
            *penalties,
            num_warps=WARPS_OF_LISTS,
        )
    if has_lists:
        launch(
            kernels.bias_and_ban,
            (num_rows,),
            adjusted,
            num_ids,
            *history,
            rows.bias_offsets,
            rows.bias_ids,
            rows.bias_values,
            rows.ban_offsets,
            rows.ban_ids,
            rows.bad_word_row_offsets,
            rows.bad_word_offsets,
            rows.bad_word_ids,
            num_warps=WARPS_OF_LISTS,
        )
    return LogitsSource(logits, adjusted, is_adjusted, num_ids, has_adjusted=True)
