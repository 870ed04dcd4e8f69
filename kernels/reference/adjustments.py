"""What happens to one row's logits before temperature: penalties, bias, then the masks (design 7.4).

All functions change ``logits`` f32 [V] in place; ids outside 0 … V − 1 have no effect.
"""

import math
from itertools import pairwise

import torch
from torch import Tensor

from kernels.ops import SampleRows
from kernels.reference.row_request import RowRequest


def adjust(logits: Tensor, tokens: Tensor, rows: SampleRows, row: RowRequest) -> None:
    """Repetition, frequency, presence, bias; then allowed ids, bans, bad words, bitmask. tokens i32 [slots, L]."""
    history = tokens[row.slot, : row.position].to(torch.int64)
    if row.has_penalties:
        penalize(logits, history, row)
    start, end = row.bias
    if start < end:
        ids, values = rows.bias_ids[start:end], rows.bias_values[start:end]
        is_known = is_id(ids, logits)
        logits[ids[is_known]] += values[is_known]
    mask(logits, history, rows, row)


def penalize(logits: Tensor, history: Tensor, row: RowRequest) -> None:
    """The repetition penalty counts prompt and output, the other two the output alone."""
    if row.repetition_penalty != 1.0:
        ids = torch.unique(history[is_id(history, logits)])
        seen = logits[ids]
        logits[ids] = torch.where(seen > 0, seen / row.repetition_penalty, seen * row.repetition_penalty)
    output = history[row.num_prompt_tokens :]
    ids, counts = torch.unique(output[is_id(output, logits)], return_counts=True)
    if row.frequency_penalty != 0.0:
        logits[ids] -= counts.to(torch.float32) * row.frequency_penalty
    if row.presence_penalty != 0.0:
        logits[ids] -= row.presence_penalty


def mask(logits: Tensor, history: Tensor, rows: SampleRows, row: RowRequest) -> None:
    """Set what may not be drawn to −inf."""
    start, end = row.allowed
    if start < end:
        ids = rows.allowed_ids[start:end]
        ids = ids[is_id(ids, logits)]
        kept = logits[ids]
        logits.fill_(-math.inf)
        logits[ids] = kept
    start, end = row.bans
    banned = rows.ban_ids[start:end].tolist() + end_bad_words(history, rows, row)
    if banned:
        ids = torch.tensor(banned, dtype=torch.int64, device=logits.device)
        logits[ids[is_id(ids, logits)]] = -math.inf
    if row.bitmask_row >= 0:
        if rows.bitmask is None:
            raise ValueError("a row names a bitmask, but there is none")
        words = rows.bitmask[row.bitmask_row]
        bits = (words.unsqueeze(1) >> torch.arange(32, dtype=torch.int32, device=words.device)) & 1
        logits.masked_fill_(bits.flatten()[: len(logits)] == 0, -math.inf)


def end_bad_words(history: Tensor, rows: SampleRows, row: RowRequest) -> list[int]:
    """The last ids of the bad words whose other ids are what the tokens so far end with."""
    first, last = row.bad_words
    bounds = rows.bad_word_offsets[first : last + 1].tolist()
    words = [rows.bad_word_ids[start:end].tolist() for start, end in pairwise(bounds)]
    longest = max((len(word) for word in words), default=0)
    tail = history[max(0, len(history) - longest) :].tolist()
    return [word[-1] for word in words if len(word) == 1 or tail[1 - len(word) :] == word[:-1]]


def is_id(ids: Tensor, logits: Tensor) -> Tensor:
    """Which ids have a logit."""
    return (ids >= 0) & (ids < len(logits))
