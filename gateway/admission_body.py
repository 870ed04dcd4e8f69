"""A glance at a request's body: the few fields that say how much work it is. No field is checked here.

What cannot be read that way is one small request: the routes say what is wrong with it.
"""

import math
from typing import Any

import msgspec

from gateway.admission import Demand
from gateway.schema.sampling import MAX_CHOICES

MOST = 1_000_000
"""No number of prompts, choices or tokens counts more: whatever is beyond is refused by a check of its own."""

MOST_TEXTS = 10_000
"""Texts in a list of prompts that are counted one by one: far more than a request may have."""


class _Glance(msgspec.Struct):
    prompt: msgspec.Raw = msgspec.Raw(b"")
    n: Any = None
    best_of: Any = None
    max_tokens: Any = None
    max_completion_tokens: Any = None
    ignore_eos: Any = None
    deadline_ms: Any = None


_decode = msgspec.json.Decoder(_Glance).decode
_decode_prompts = msgspec.json.Decoder(list[msgspec.Raw]).decode


def glance(body: bytes, default_max_tokens: float = math.inf, timeout: float = math.inf) -> Demand:
    """What the request in ``body`` asks for. ``timeout``: seconds that its client waits at most, as the head says."""
    try:
        seen = _decode(body)
        num_prompts, num_prompt_tokens = _prompts(seen.prompt)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return Demand(len(body), max_tokens=default_max_tokens)
    num_choices = max(1, int(max(_number(seen.n, 1), _number(seen.best_of, 1))))
    if num_choices > MAX_CHOICES:  # it is refused for that, not told to come again
        return Demand(len(body), max_tokens=default_max_tokens)
    most = seen.max_tokens if seen.max_completion_tokens is None else seen.max_completion_tokens
    deadline = _number(seen.deadline_ms, math.inf) / 1000
    return Demand(
        len(body),
        num_prompts,
        num_choices,
        _number(most, default_max_tokens),
        ends_by_itself=seen.ignore_eos is not True,
        num_prompt_tokens=num_prompt_tokens,
        deadline=min(deadline, timeout),
    )


def _prompts(prompt: msgspec.Raw) -> tuple[int, int | None]:
    """How many there are, and how many tokens in all if they are ids."""
    text = bytes(prompt)
    if not text.startswith(b"["):
        return 1, None
    num_commas, first = text.count(b","), text[1:].lstrip()[:1]
    if first.isdigit():
        return 1, num_commas + 1
    if first == b"[":
        return max(1, text.count(b"[") - 1), num_commas + 1
    return max(1, len(_decode_prompts(text)) if num_commas < MOST_TEXTS else num_commas), None


def _number(value: Any, default: float) -> float:
    if type(value) not in (int, float):
        return default
    return float(min(MOST, max(0, value)))
