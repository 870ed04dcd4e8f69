"""Sampling parameters by slot, on the host, and the rows that one step's sampler needs from them.

Knows no logits. Dense parameters are columns; sparse lists (bias, bans, allowed ids, bad words) are kept only for
the slots that have any, and become offsets and values for a step.
"""

from collections.abc import Iterable
from collections.abc import Sequence as ListOf
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from engine_core.device.queue import Array, Stage
from engine_core.step import ScheduledSequence, SlotBinding
from ipc.params import SamplingParams
from kernels.ops import SampleKinds, SampleRows

_FLOATS = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")
_INTEGERS = ("num_prompt_tokens", "streams", "seeds", "top_k")


class SlotParameters:
    """The parameters of the bound slots."""

    def __init__(self, num_slots: int, num_token_ids: int, device: torch.device) -> None:
        self._num_token_ids, self._device = num_token_ids, device
        self._kinds = np.zeros(num_slots, np.uint8)
        self._nothing: dict[int, dict[str, Tensor]] = {}
        self._floats = np.zeros((len(_FLOATS), num_slots), np.float32)
        self._integers = np.zeros((len(_INTEGERS), num_slots), np.int64)
        self._num_prompt_tokens = self._integers[0]
        self._params: dict[int, SamplingParams] = {}  # of slots with sparse lists or min_tokens

    def bind(self, binding: SlotBinding) -> None:
        """A sequence takes a slot: its parameters replace the last one's."""
        slot, params = binding.slot, binding.params
        self._floats[:, slot] = [getattr(params, name) for name in _FLOATS]
        seed = int(np.uint64(params.seed).astype(np.int64))  # the bits of a u64
        self._integers[:, slot] = (binding.num_prompt_tokens, binding.stream, seed, params.top_k)
        has_lists = bool(params.logit_bias or params.allowed_token_ids or params.bad_words or params.min_tokens)
        self._kinds[slot] = _pack_kinds(params, has_lists)
        if has_lists:
            self._params[slot] = params
        else:
            self._params.pop(slot, None)

    def rows(self, entries: ListOf[ScheduledSequence], stage: Stage) -> SampleRows:
        """The rows of the entries that are sampled, in order."""
        slots = np.array([entry.slot for entry in entries], np.int64)
        params = [self._params.get(entry.slot) for entry in entries] if self._params else []
        # One look-up for all columns of a kind: each result row is one column, and contiguous.
        floats, integers = self._floats.take(slots, axis=1), self._integers.take(slots, axis=1)
        lists = self._no_lists(len(entries))
        if any(params):
            lists = lists | {name: stage.put(values) for name, values in self._lists(entries, params).items()}
        return SampleRows(
            slots=stage.put(slots),
            positions=stage.put(np.array([entry.start + entry.num_tokens for entry in entries], np.int64)),
            **dict(zip(_INTEGERS, stage.put(integers).unbind(), strict=True)),
            **dict(zip(_FLOATS, stage.put(floats).unbind(), strict=True)),
            **lists,
            bitmask=None,
            num_token_ids=self._num_token_ids,
            num_logprobs=max([entry.num_logprobs for entry in entries], default=-1),
            kinds=_unpack_kinds(int(np.bitwise_or.reduce(self._kinds[slots]))),
        )

    def _no_lists(self, num_rows: int) -> dict[str, Tensor]:
        """What rows without sparse lists and masks have. Nobody writes to it, so steps share it."""
        if num_rows not in self._nothing:
            self._nothing[num_rows] = {
                name: torch.from_numpy(values).to(self._device) for name, values in _no_lists(num_rows).items()
            }
        return self._nothing[num_rows]

    def _lists(self, entries: ListOf[ScheduledSequence], params: ListOf[SamplingParams | None]) -> dict[str, Array]:
        bias = [p.logit_bias if p else () for p in params]
        bans = [self._bans(entry, p) for entry, p in zip(entries, params, strict=True)]
        allowed = [p.allowed_token_ids if p else () for p in params]
        words = [p.bad_words if p else () for p in params]
        all_words = list(chain.from_iterable(words))
        return {
            "bias_offsets": _offsets(bias),
            "bias_ids": _ids(token_id for token_id, _ in chain.from_iterable(bias)),
            "bias_values": np.array([value for _, value in chain.from_iterable(bias)], np.float32),
            "ban_offsets": _offsets(bans),
            "ban_ids": _ids(chain.from_iterable(bans)),
            "allowed_offsets": _offsets(allowed),
            "allowed_ids": _ids(chain.from_iterable(allowed)),
            "bad_word_row_offsets": _offsets(words),
            "bad_word_offsets": _offsets(all_words),
            "bad_word_ids": _ids(chain.from_iterable(all_words)),
        }

    def _bans(self, entry: ScheduledSequence, params: SamplingParams | None) -> tuple[int, ...]:
        """The ids that would end a sequence that has not min_tokens output tokens yet; a host mask says that itself."""
        if entry.needs_commit:
            return ()
        num_output = entry.end - int(self._num_prompt_tokens[entry.slot])
        return tuple(sorted(params.stop_set)) if params and num_output < params.min_tokens else ()


def _pack_kinds(params: SamplingParams, has_lists: bool) -> int:
    """A bit for each field of ``SampleKinds``."""
    penalties = params.presence_penalty or params.frequency_penalty or params.repetition_penalty != 1
    filters = params.top_k or params.top_p < 1 or params.min_p
    asked = (params.temperature, penalties, has_lists, filters)
    return sum(1 << bit for bit, value in enumerate(asked) if value)


def _unpack_kinds(bits: int) -> SampleKinds:
    return SampleKinds(*(bool(bits >> bit & 1) for bit in range(4)))


def _offsets(lists: ListOf[ListOf[object]]) -> Array:
    return np.cumsum([0, *(len(values) for values in lists)], dtype=np.int64)


def _ids(values: Iterable[int]) -> Array:
    return np.array(list(values), np.int64)


def _no_lists(num_rows: int) -> dict[str, Array]:
    offsets, ids = np.zeros(num_rows + 1, np.int64), np.zeros(0, np.int64)
    lists = {f"{name}_offsets": offsets for name in ("bias", "ban", "allowed", "bad_word_row")}
    values = {f"{name}_ids": ids for name in ("bias", "ban", "allowed", "bad_word")}
    return {
        **lists,
        **values,
        "bias_values": np.zeros(0, np.float32),
        "bad_word_offsets": np.zeros(1, np.int64),
        "bitmask_rows": np.full(num_rows, -1, np.int64),
    }
