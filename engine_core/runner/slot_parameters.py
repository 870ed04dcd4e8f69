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

from engine_core.step import ScheduledSequence, SlotBinding
from ipc.params import SamplingParams
from kernels.ops import SampleRows

_FLOATS = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")
_INTEGERS = ("num_prompt_tokens", "streams", "seeds", "top_k")


class SlotParameters:
    """The parameters of the bound slots."""

    def __init__(self, num_slots: int, num_token_ids: int) -> None:
        self._num_token_ids = num_token_ids
        self._floats = np.zeros((len(_FLOATS), num_slots), np.float32)
        self._integers = np.zeros((len(_INTEGERS), num_slots), np.int64)
        self._num_prompt_tokens = self._integers[0]
        self._nothing: dict[int, dict[str, Tensor]] = {}
        self._params: dict[int, SamplingParams] = {}  # of slots with sparse lists or min_tokens

    def bind(self, binding: SlotBinding) -> None:
        """A sequence takes a slot: its parameters replace the last one's."""
        slot, params = binding.slot, binding.params
        self._floats[:, slot] = [getattr(params, name) for name in _FLOATS]
        seed = int(np.uint64(params.seed).astype(np.int64))  # the bits of a u64
        self._integers[:, slot] = (binding.num_prompt_tokens, binding.stream, seed, params.top_k)
        if params.logit_bias or params.allowed_token_ids or params.bad_words or params.min_tokens:
            self._params[slot] = params
        else:
            self._params.pop(slot, None)

    def rows(self, entries: ListOf[ScheduledSequence]) -> SampleRows:
        """The rows of the entries that are sampled, in order."""
        slots = np.array([entry.slot for entry in entries], np.int64)
        params = [self._params.get(entry.slot) for entry in entries] if self._params else []
        nothing = self._no_lists(len(entries))
        # One look-up for all columns of a kind: each result row is one column, and contiguous.
        floats = torch.from_numpy(self._floats.take(slots, axis=1)).unbind()
        integers = torch.from_numpy(self._integers.take(slots, axis=1)).unbind()
        return SampleRows(
            slots=torch.from_numpy(slots),
            positions=torch.from_numpy(np.array([entry.start + entry.num_tokens for entry in entries], np.int64)),
            **dict(zip(_INTEGERS, integers, strict=True)),
            **dict(zip(_FLOATS, floats, strict=True)),
            **(nothing | self._sparse(entries, params) if any(params) else nothing),
            bitmask=None,
            num_token_ids=self._num_token_ids,
            num_logprobs=max([entry.num_logprobs for entry in entries], default=-1),
        )

    def _no_lists(self, num_rows: int) -> dict[str, Tensor]:
        """What rows without sparse lists and masks have. Nobody writes to it, so steps share it."""
        if num_rows not in self._nothing:
            self._nothing[num_rows] = _no_lists(num_rows)
        return self._nothing[num_rows]

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
        """The ids that would end a sequence that has not min_tokens output tokens yet; a host mask says that itself."""
        if entry.needs_commit:
            return ()
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
        "bitmask_rows": torch.full((num_rows,), -1, dtype=torch.int64),
    }
