"""The arguments of a call in Python, ``(a=1, b="x")``: where they end, and the same as JSON. Nothing is evaluated."""

import ast
import json
import re
from typing import Any

_CLOSERS = {"(": ")", "[": "]", "{": "}"}
_PLAIN = {  # what has no meaning for brackets, by the quote that one is inside of
    "": re.compile(r"[^()\[\]{}'\"\\#]*"),
    "'": re.compile(r"[^'\\]*"),
    '"': re.compile(r'[^"\\]*'),
}
_LITERAL = re.compile(r"""(\w*+)('(?:[^'\\]|\\.)*+'|"(?:[^"\\]|\\.)*+")|\w++""", re.DOTALL)
_UNUSUAL = re.compile(r"\\(.)|[\r\n]", re.DOTALL)
_ESCAPES = frozenset("\n\r\\'\"abfnrtvxNuU01234567")
_JSON_WORDS = {"true": True, "false": False, "null": None}


class PythonArguments:
    """Follows ``(…)`` through text that comes in pieces. Strings in three quotes are read as three strings.

    ``is_malformed``: the character after what was read cannot be there.
    """

    __slots__ = ("_closers", "_is_escaped", "_quote", "has_ended", "is_malformed")

    def __init__(self) -> None:
        self.has_ended = False
        self.is_malformed = False
        self._closers: list[str] = []
        self._quote = ""
        self._is_escaped = False

    def advance(self, text: str, position: int) -> int:
        """Reads on from ``position``. Returns the index after what belongs to the arguments."""
        while position < len(text) and not self.has_ended:
            if self._is_escaped:
                self._is_escaped = False
                position += 1
                continue
            plain = _PLAIN[self._quote].match(text, position)
            position = plain.end() if plain else position
            if position < len(text):
                self._read(text[position])
                if self.is_malformed:
                    break
                position += 1
        return position

    def _read(self, character: str) -> None:
        if self._quote:
            self._is_escaped = character == "\\"
            self._quote = self._quote if self._is_escaped else ""
        elif character in "'\"":
            self._quote = character
        elif character in _CLOSERS:
            self._closers.append(_CLOSERS[character])
        elif self._closers and character == self._closers[-1]:
            self._closers.pop()
            self.has_ended = not self._closers
        else:
            self.is_malformed = True


def arguments_json(text: str) -> str | None:
    """``(a=1)`` as ``{"a": 1}``; None if an argument has no name or is no literal that JSON has, too.

    JSON's true, false and null are understood, like line breaks in strings and backslashes that escape nothing.
    """
    try:
        call = ast.parse("_" + _LITERAL.sub(_plain_literal, text), mode="eval").body
        arguments = _arguments(call)
        spelled = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):  # the last two: nested too deeply
        return None
    try:
        spelled.encode()
    except UnicodeEncodeError:  # half a surrogate pair: spelled out it is JSON all the same
        return json.dumps(arguments)
    return spelled


def _plain_literal(match: re.Match[str]) -> str:
    """A string as Python takes it without a warning or an error; other words as they are."""
    prefix, literal = match.groups()
    if literal is None or prefix:
        return match.group()
    return _UNUSUAL.sub(_plain_character, literal)


def _plain_character(match: re.Match[str]) -> str:
    escaped: str | None = match.group(1)
    if escaped is None:
        return "\\n" if match.group() == "\n" else "\\r"
    return match.group() if escaped in _ESCAPES else "\\\\" + escaped


def _arguments(call: ast.expr) -> dict[str, Any]:
    """Raises ValueError for anything but keyword arguments with literals."""
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.args:
        raise ValueError("no call with keyword arguments only")
    arguments: dict[str, Any] = {}
    for keyword in call.keywords:
        if keyword.arg is None:
            raise ValueError("an argument without a name")
        arguments[keyword.arg] = _literal(keyword.value)
    return arguments


def _literal(node: ast.expr | None) -> Any:
    match node:
        case ast.Constant(value=str() | int() | float() | None):
            return node.value
        case ast.Name(id=word) if word in _JSON_WORDS:
            return _JSON_WORDS[word]
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            return -number
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            return [_literal(element) for element in elements]
        case ast.Dict(keys=keys, values=values):
            return {_key(key): _literal(value) for key, value in zip(keys, values, strict=True)}
    raise ValueError("no literal that JSON has")


def _key(node: ast.expr | None) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    raise ValueError("a key that is no string")
