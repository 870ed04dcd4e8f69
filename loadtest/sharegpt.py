"""Conversations from a file in ShareGPT's format: a list of ``{"conversations": [{"from": ..., "value": ...}, ...]}``.

Files of that kind are seldom clean. What can be no conversation (nobody asks anything) is left out and counted; what
has another shape is an error that names the file and the place.
"""

import json
from dataclasses import dataclass
from pathlib import Path

USERS = ("human", "user")
ANSWERERS = ("gpt", "assistant", "chatgpt", "bing", "bard", "model")
OTHERS = ("system", "tool", "function", "function_call", "observation")


class DatasetError(ValueError):
    """The file cannot be used; the message says where and why."""


@dataclass(frozen=True, slots=True)
class Shared:
    """``conversations``: a list of (what the user says, what they were answered or None) each."""

    path: Path
    conversations: list[list[tuple[str, str | None]]]
    num_left_out: int

    def __str__(self) -> str:
        turns = sum(len(one) for one in self.conversations)
        return (
            f"{self.path}: {len(self.conversations)} conversations with {turns} turns"
            f"{f', {self.num_left_out} without a question left out' if self.num_left_out else ''}"
        )


def read(path: Path) -> Shared:
    """Raises DatasetError."""
    try:
        items = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DatasetError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DatasetError(f"{path}: no UTF-8 text: {error.reason} at byte {error.start}") from error
    except json.JSONDecodeError as error:
        raise DatasetError(f"{path}: no JSON: {error.msg} at line {error.lineno}, column {error.colno}") from error
    if not isinstance(items, list):
        raise DatasetError(f"{path}: must be a list of conversations, is {_kind(items)}")
    read_all = [_conversation(item, f"{path}: item {index}") for index, item in enumerate(items)]
    conversations = [one for one in read_all if one]
    if not conversations:
        raise DatasetError(f"{path}: none of the {len(items)} conversations has a question")
    return Shared(path, conversations, len(items) - len(conversations))


def _conversation(item: object, where: str) -> list[tuple[str, str | None]]:
    """Turns of the user; answers before the first one are left out, as are empty ones."""
    if not isinstance(item, dict):
        raise DatasetError(f"{where} must be an object, is {_kind(item)}")
    if not isinstance(said := item.get("conversations"), list):
        raise DatasetError(f"{where} must have a list 'conversations', has {_kind(said)} there")
    turns: list[tuple[str, str | None]] = []
    for index, turn in enumerate(said):
        there = f"{where}, turn {index}"
        if not isinstance(turn, dict):
            raise DatasetError(f"{there} must be an object, is {_kind(turn)}")
        speaker, text = turn.get("from"), turn.get("value")
        if not isinstance(speaker, str) or not isinstance(text, str):
            missing = "from" if not isinstance(speaker, str) else "value"
            raise DatasetError(f"{there} must have the text {missing!r}, has {_kind(turn.get(missing))} there")
        if speaker not in USERS + ANSWERERS + OTHERS:
            raise DatasetError(f"{there} is from {speaker!r}, which is none of {', '.join(USERS + ANSWERERS + OTHERS)}")
        if speaker in USERS and text.strip():
            turns.append((text, None))
        elif speaker in ANSWERERS and turns and text.strip():
            turns[-1] = (turns[-1][0], text)
    return turns


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a text", type(None): "nothing", bool: "true or false"}
    return names.get(type(value), "a number")
