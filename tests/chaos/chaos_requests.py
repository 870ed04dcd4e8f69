"""The requests that faults are tried under: every kind there is, each with a seed or at temperature 0."""

import random
from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Any

CHAT, COMP = "/v1/chat/completions", "/v1/completions"
TEXT = "the lighthouse keeper counts ships that pass before breakfast and writes their names into a book"
SMALLEST_ID, LARGEST_ID = 260, 490
"""Ids of random prompts. Those below are single bytes, most of which are in no request: others may have them."""

SHARED = list(range(SMALLEST_ID, LARGEST_ID)) * 2
"""How many prompts begin."""

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 40}, "years": {"type": "array", "items": {"type": "integer"},
                   "minItems": 12, "maxItems": 12}},
    "required": ["name", "years"],
    "additionalProperties": False,
}  # fmt: skip
TOOL = {"type": "function", "function": {"name": "note", "parameters": SCHEMA}}


@dataclass(frozen=True, slots=True)
class MixedRequest:
    """One of them, with the name of its kind."""

    kind: str
    path: str
    body: dict[str, Any]


def mixed_requests(seed: int, count: int, num_tokens: int, but: Container[str] = ()) -> list[MixedRequest]:
    """``count`` requests of all kinds in turn, most of about ``num_tokens`` output tokens.

    ``but``: kinds left out.
    """
    dice, kinds = random.Random(seed), [kind for kind in KINDS if kind not in but]
    return [_make(dice, kinds[index % len(kinds)], num_tokens) for index in range(count)]


def _make(dice: random.Random, kind: str, num_tokens: int) -> MixedRequest:
    path, fields = KINDS[kind](dice)
    length = dice.randint(num_tokens // 2, num_tokens * 3 // 2)
    common: dict[str, Any] = {"model": "tiny", "max_tokens": length, "ignore_eos": True, "stream": True}
    common |= {"temperature": 0} if dice.random() < 0.4 else {"temperature": 1, "seed": dice.randrange(2**32)}
    body = common | fields
    if body["stream"]:
        body["stream_options"] = {"include_usage": True}
    return MixedRequest(kind, path, {key: value for key, value in body.items() if value is not None})


def _text(dice: random.Random, num_words: int) -> str:
    return " ".join(dice.choices(TEXT.split(), k=num_words))


def _ids(dice: random.Random, count: int) -> list[int]:
    return [dice.randrange(SMALLEST_ID, LARGEST_ID) for _ in range(count)]


def _chat(dice: random.Random, **fields: Any) -> tuple[str, dict[str, Any]]:
    return CHAT, {"messages": [{"role": "user", "content": _text(dice, dice.randint(4, 40))}], **fields}


def _comp(prompt: Any, **fields: Any) -> tuple[str, dict[str, Any]]:
    return COMP, {"prompt": prompt, **fields}


KINDS: dict[str, Callable[[random.Random], tuple[str, dict[str, Any]]]] = {
    "chat": lambda dice: _chat(dice, logprobs=True, top_logprobs=3),
    "completion": lambda dice: _comp(_text(dice, 12), logprobs=2),
    "several choices": lambda dice: _comp(_text(dice, 20), n=3, temperature=1, seed=dice.randrange(2**32), logprobs=1),
    "stop strings": lambda dice: _chat(dice, stop=[_text(dice, 1)[:2], "zz", "\n\n"], ignore_eos=None),
    "long prompt": lambda dice: _comp(_ids(dice, dice.randint(700, 1800))),
    "shared prefix": lambda dice: _comp(SHARED + _ids(dice, 30), logprobs=0),
    "whole": lambda dice: _chat(dice, stream=False, n=2, temperature=1, seed=dice.randrange(2**32), logprobs=True),
    "schema": lambda dice: _chat(
        dice, response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}, ignore_eos=None
    ),
    "regex": lambda dice: _comp(_text(dice, 5), structured_outputs={"regex": "([a-z]{3,9} ){20}!"}, ignore_eos=None),
    "penalties": lambda dice: _comp(
        _text(dice, 30), repetition_penalty=1.2, frequency_penalty=0.4, presence_penalty=0.3, min_tokens=10, top_k=40,
        top_p=0.9, bad_words=["the", "ship"], logit_bias={"77": 2.5},
    ),
    "several prompts": lambda dice: _comp([SHARED[:90], _ids(dice, 40), _text_ids(dice)], n=2, temperature=1, seed=7),
    "tool": lambda dice: _chat(
        dice, tools=[TOOL], tool_choice={"type": "function", "function": {"name": "note"}}, ignore_eos=None
    ),
    "prompt logprobs": lambda dice: _comp(SHARED[:200], stream=False, echo=True, logprobs=2),
    "beams": lambda dice: _comp(
        _text(dice, 8), stream=False, use_beam_search=True, n=3, temperature=0, seed=None, ignore_eos=None
    ),
    "shared prefix, whole": lambda dice: _comp(SHARED + _ids(dice, 8), stream=False, return_token_ids=True),
    "token ids": lambda dice: _comp(_text(dice, 9), return_token_ids=True, logprobs=1, n=2, temperature=1, seed=3),
}  # fmt: skip


def _text_ids(dice: random.Random) -> list[int]:
    return _ids(dice, dice.randint(5, 60))
