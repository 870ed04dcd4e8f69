"""Follows one JSON value through text that comes in pieces, to the character where it ends.

Strict where that end is at stake: brackets, quotes, colons and commas must be where RFC 8259 has them (a comma before
a closing bracket is let pass). What stands inside strings and scalars is taken as it is: models write ``\\'`` and True.
"""

import re
from collections.abc import Callable

from gateway.tool_calls.text_reader import Emit, Parsing, TextReader

_SPACE = re.compile(r"[ \t\r\n]*")
_PLAIN = re.compile(r'[^"\\]*')
_SCALAR = re.compile(r"[-+.\w]+", re.ASCII)
_CLOSERS = {"{": "}", "[": "]"}


class JsonValue:
    """``has_ended``: the value is complete; so it is with a number only at the character after it.

    ``is_malformed``: the character after what was read cannot be there.
    """

    __slots__ = ("_closers", "_is_key", "_step", "has_ended", "is_malformed")

    def __init__(self) -> None:
        self.has_ended = False
        self.is_malformed = False
        self._closers: list[str] = []
        self._is_key = False  # whether the string that is being read is a key
        self._step: Callable[[JsonValue, str, int], int] = JsonValue._read_value

    def advance(self, text: str, position: int) -> int:
        """Reads on from ``position``. Returns the index after what belongs to the value."""
        while position < len(text) and not self.has_ended and not self.is_malformed:
            position = self._step(self, text, position)
        return position

    def _read_value(self, text: str, position: int) -> int:
        position = _skip_space(text, position)
        if position == len(text):
            return position
        character = text[position]
        if character == '"':
            self._is_key, self._step = False, JsonValue._read_string
            return position + 1
        if character in _CLOSERS:
            self._closers.append(_CLOSERS[character])
            self._step = JsonValue._read_key if character == "{" else JsonValue._read_value
            return position + 1
        if character == "]":
            return self._close(character, position)
        self._step = JsonValue._read_scalar
        self.is_malformed = not _SCALAR.match(character)
        return position

    def _read_key(self, text: str, position: int) -> int:
        position = _skip_space(text, position)
        if position == len(text):
            return position
        if text[position] == '"':
            self._is_key, self._step = True, JsonValue._read_string
            return position + 1
        return self._close(text[position], position)

    def _read_colon(self, text: str, position: int) -> int:
        position = _skip_space(text, position)
        if position == len(text):
            return position
        self._step = JsonValue._read_value
        self.is_malformed = text[position] != ":"
        return position + (not self.is_malformed)

    def _read_after_value(self, text: str, position: int) -> int:
        """A comma, or the end of what the value stands in."""
        position = _skip_space(text, position)
        if position == len(text):
            return position
        if text[position] != ",":
            return self._close(text[position], position)
        self._step = JsonValue._read_key if self._closers[-1] == "}" else JsonValue._read_value
        return position + 1

    def _read_string(self, text: str, position: int) -> int:
        plain = _PLAIN.match(text, position)
        position = plain.end() if plain else position
        if position == len(text):
            return position
        if text[position] == "\\":
            self._step = JsonValue._read_escaped
        elif self._is_key:
            self._step = JsonValue._read_colon
        else:
            self._end_value()
        return position + 1

    def _read_escaped(self, text: str, position: int) -> int:
        self._step = JsonValue._read_string
        return position + 1

    def _read_scalar(self, text: str, position: int) -> int:
        scalar = _SCALAR.match(text, position)
        if scalar:
            return scalar.end()
        self._end_value()
        return position

    def _close(self, character: str, position: int) -> int:
        if not self._closers or character != self._closers[-1]:
            self.is_malformed = True
            return position
        self._closers.pop()
        self._end_value()
        return position + 1

    def _end_value(self) -> None:
        self._step = JsonValue._read_after_value
        self.has_ended = not self._closers


def _skip_space(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    return match.end() if match else position


def copy_value(reader: TextReader, emit: Emit) -> Parsing[bool]:
    """Hands on a JSON value as it comes. False if it breaks off, or goes on as no JSON can."""
    value = JsonValue()
    while (yield from reader.peek()):
        end = value.advance(reader.text, reader.position)
        if end > reader.position:
            emit(reader.take(end))
        if value.has_ended or value.is_malformed:
            break
    return value.has_ended
