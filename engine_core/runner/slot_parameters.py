"""Sampling parameters by slot, on the host, and the rows that one step's sampler needs from them.

Knows no logits. Dense parameters are columns; sparse lists (bias, bans, allowed ids, bad words) are kept only for
the slots that have any, and become offsets and values for a step.
"""

from collections.abc import Iterable
from collections.abc import Sequence as ListOf
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine_core.step import ScheduledSequence, SlotBinding
from ipc.params import SamplingParams
from kernels.ops import SampleRows

_COLUMNS = (
    ("temperature", np.float32),
    ("top_k", np.int64),
    ("top_p", np.float32),
    ("min_p", np.float32),
    ("presence_penalty", np.float32),
    ("frequency_penalty", np.float32),
    ("repetition_penalty", np.float32),
)


class SlotParameters:
    """The parameters of the bound slots."""

    def __init__(self, num_slots: int, num_token_ids: int) -> None:
        self._num_token_ids = num_token_ids
        self._columns: dict[str, NDArray[np.generic]] = {name: np.zeros(num_slots, kind) for name, kind in _COLUMNS}
        self._seeds = np.zeros(num_slots, np.uint64)
        self._streams = np.zeros(num_slots, np.int64)
        self._num_prompt_tokens = np.zeros(num_slots, np.int64)
        self._params: dict[int, SamplingParams] = {}  # of slots with sparse lists or min_tokens

    def bind(self, binding: SlotBinding) -> None:
        """A sequence takes a slot: its parameters replace the last one's."""
        slot, params = binding.slot, binding.params
        for name, column in self._columns.items():
            column[slot] = getattr(params, name)
        self._seeds[slot] = params.seed
        self._streams[slot] = binding.stream
        self._num_prompt_tokens[slot] = binding.num_prompt_tokens
        if params.logit_bias or params.allowed_token_ids or params.bad_words or params.min_tokens:
            self._params[slot] = params
        else:
            self._params.pop(slot, None)

    def rows(self, entries: ListOf[ScheduledSequence]) -> SampleRows:
        """The rows of the entries that are sampled, in order."""
        slots = np.array([entry.slot for entry in entries], np.int64)
        params = [self._params.get(entry.slot) for entry in entries]
        sparse = self._sparse(entries, params) if any(params) else _no_lists(len(entries))
        return SampleRows(
            slots=torch.from_numpy(slots),
            positions=torch.from_numpy(np.array([entry.end for entry in entries], np.int64)),
            num_prompt_tokens=torch.from_numpy(self._num_prompt_tokens[slots]),
            streams=torch.from_numpy(self._streams[slots]),
            seeds=torch.from_numpy(self._seeds[slots].view(np.int64)),
            **{name: torch.from_numpy(column[slots]) for name, column in self._columns.items()},
            **sparse,
            bitmask_rows=torch.full((len(entries),), -1, dtype=torch.int64),
            bitmask=None,
            num_token_ids=self._num_token_ids,
            num_logprobs=max((entry.num_logprobs for entry in entries), default=-1),
        )

    def _sparse(self, entries: ListOf[ScheduledSequence], params: ListOf[SamplingParams | None]) -> dict[str, Tensor]:
        bias = [p.logit_bias if p else () for p in params]
        bans = [self._bans(entry, p) for entry, p in zip(entries, params, strict=True)]
        allowed = [p.allowed_token_ids if p else () for p in params]
        words = [p.bad_words if p else () for p in params]
        all_words = list(chain.from_iterable(words))
        return {
            "bias_offsets": _offsets(bias),
            "bias_ids": _ids(token_id for token_id, _ in chain.from_iterable(bias)),
            "bias_values": torch.tensor([value for _, value in chain.from_iterable(bias)], dtype=torch.float32),
            "ban_offsets": _offsets(bans),
            "ban_ids": _ids(chain.from_iterable(bans)),
            "allowed_offsets": _offsets(allowed),
            "allowed_ids": _ids(chain.from_iterable(allowed)),
            "bad_word_row_offsets": _offsets(words),
            "bad_word_offsets": _offsets(all_words),
            "bad_word_ids": _ids(chain.from_iterable(all_words)),
        }

    def _bans(self, entry: ScheduledSequence, params: SamplingParams | None) -> tuple[int, ...]:
        """The ids that would end a sequence that has not min_tokens output tokens yet."""
        num_output = entry.end - int(self._num_prompt_tokens[entry.slot])
        return tuple(sorted(params.stop_set)) if params and num_output < params.min_tokens else ()


def _offsets(lists: ListOf[ListOf[object]]) -> Tensor:
    return torch.from_numpy(np.cumsum([0, *(len(values) for values in lists)], dtype=np.int64))


def _ids(values: Iterable[int]) -> Tensor:
    return torch.tensor(list(values), dtype=torch.int64)


def _no_lists(num_rows: int) -> dict[str, Tensor]:
    offsets, ids = torch.zeros(num_rows + 1, dtype=torch.int64), torch.zeros(0, dtype=torch.int64)
    lists = {f"{name}_offsets": offsets for name in ("bias", "ban", "allowed", "bad_word_row")}
    values = {f"{name}_ids": ids for name in ("bias", "ban", "allowed", "bad_word")}
    return {
        **lists,
        **values,
        "bias_values": torch.zeros(0, dtype=torch.float32),
        "bad_word_offsets": torch.zeros(1, dtype=torch.int64),
    }
