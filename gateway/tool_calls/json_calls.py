"""Calls that are JSON objects with a name and arguments, whichever tags stand around them.

The arguments are what the model wrote, character for character, while it comes. Written before the name, they are held
until the name is known.
"""

import enum
import json
from collections.abc import Callable

from gateway.tool_calls.call_list import read_list
from gateway.tool_calls.json_value import copy_value
from gateway.tool_calls.output import ToolCallOutput
from gateway.tool_calls.text_reader import SPACE, Emit, Parsing, TextReader

# Models take the one that they were trained on, whatever they are told.
_ARGUMENTS_KEYS = ("arguments", "parameters")


class CallEnd(enum.Enum):
    """How an object ended."""

    CLOSED = enum.auto()  # a complete call
    STOPPED = enum.auto()  # a call that was sent in part, and then broke off or went on as no JSON can
    NOT_A_CALL = enum.auto()  # nothing was sent, and the text is content


def read_call(
    reader: TextReader, output: ToolCallOutput, may_call: Callable[[str], bool] | None = None
) -> Parsing[CallEnd]:
    """One object, and white space before it. Text that is held already shares its fate.

    It is a call if it has a name, and ``may_call`` allows the name. Other keys are read over, like a second name.
    """
    call = _JsonCall(reader, output, may_call)
    is_closed = yield from call.read()
    if is_closed and call.name:
        output.end_call()
        return CallEnd.CLOSED
    output.stop_call()
    return CallEnd.STOPPED if call.name else CallEnd.NOT_A_CALL


def read_array(
    reader: TextReader, output: ToolCallOutput, may_call: Callable[[str], bool] | None = None
) -> Parsing[None]:
    """An array of such objects, or what of it there is."""

    def read_one() -> Parsing[bool]:
        return (yield from read_call(reader, output, may_call)) is CallEnd.CLOSED

    yield from read_list(reader, output, read_one)


class _JsonCall:
    """An object that is being read. ``name``: that of the call which it was sent as."""

    __slots__ = ("_has_arguments", "_may_call", "_output", "_reader", "name")

    def __init__(
        self, reader: TextReader, output: ToolCallOutput, may_call: Callable[[str], bool] | None = None
    ) -> None:
        self._reader = reader
        self._output = output
        self._may_call = may_call
        self._has_arguments = False
        self.name = ""

    def read(self) -> Parsing[bool]:
        """Up to the closing brace; False if there is something else before it."""
        reader, hold = self._reader, self._output.hold
        if not (yield from reader.copy_mark("{", hold)):
            return False
        while not (yield from reader.copy_mark("}", hold)):
            key = yield from _read_string(reader, hold)
            if key is None or not (yield from reader.copy_mark(":", hold)):
                return False
            yield from reader.copy_while(SPACE, hold)
            if not (yield from self._read_value_of(key)):
                return False
            if (yield from reader.copy_mark(",", hold)):
                continue
            if (yield from reader.peek()) != "}":
                return False
        return True

    def _read_value_of(self, key: str) -> Parsing[bool]:
        if key == "name" and not self.name:
            name = yield from _read_string(self._reader, self._output.hold)
            if not name or (self._may_call and not self._may_call(name)):
                return False
            self.name = name
            self._output.name(name)
            return True
        if key in _ARGUMENTS_KEYS and not self._has_arguments:
            self._has_arguments = True
            return (yield from copy_value(self._reader, self._output.arguments))
        return (yield from copy_value(self._reader, self._output.hold))


def _read_string(reader: TextReader, emit: Emit) -> Parsing[str | None]:
    """A JSON string, decoded; None if there is none, or none that UTF-8 can spell."""
    if (yield from reader.peek()) != '"':
        return None
    pieces: list[str] = []

    def collect(piece: str) -> None:
        pieces.append(piece)
        emit(piece)

    if not (yield from copy_value(reader, collect)):
        return None
    try:
        decoded = json.loads("".join(pieces), strict=False)
        decoded.encode()
    except ValueError:
        return None
    return str(decoded)
