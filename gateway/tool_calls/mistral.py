"""``[TOOL_CALLS] [{"name": …, "arguments": {…}}, …]``, and the newer ``[TOOL_CALLS]name[ARGS]{…}`` for each call."""

import re
from typing import ClassVar

from gateway.tool_calls.incremental import IncrementalParser
from gateway.tool_calls.json_calls import read_array, read_call
from gateway.tool_calls.json_value import copy_value
from gateway.tool_calls.parser import ToolCallFormat
from gateway.tool_calls.text_reader import SPACE, Parsing, Tags

__all__ = ["MistralParser"]

_CALLS = Tags("[TOOL_CALLS]")
_ID = Tags("[CALL_ID]")
_ARGUMENTS = Tags("[ARGS]")
_WORD = re.compile(r"[-\w.:/]+")


class MistralParser(IncrementalParser):
    """The format is the array, the only form that is JSON objects. ``[TOOL_CALLS]`` in it is one special token."""

    needs_special_tokens = True
    format: ClassVar[ToolCallFormat | None] = ToolCallFormat(
        begin="[TOOL_CALLS][",
        separator=", ",
        end="]",
        call_begin="",
        call_end="",
        name_key="name",
        arguments_key="arguments",
    )

    def parse(self) -> Parsing[None]:
        """Content and calls in turn."""
        reader, output = self.reader, self.output
        while tag := (yield from reader.copy_until(_CALLS, output.text)):
            output.hold(tag)
            yield from reader.copy_while(SPACE, output.hold)
            first = yield from reader.peek()
            if first == "[":
                yield from read_array(reader, output)
            elif first == "{":
                yield from read_call(reader, output)
            elif (yield from self._read_named_call()):
                output.end_call()
            else:
                output.stop_call()

    def _read_named_call(self) -> Parsing[bool]:
        """``name[ARGS]{…}``, with or without ``[ARGS]`` and, before it, ``[CALL_ID]`` and an id."""
        reader, output = self.reader, self.output
        name: list[str] = []

        def collect(piece: str) -> None:
            name.append(piece)
            output.hold(piece)

        yield from reader.copy_while(_WORD, collect)
        yield from reader.copy_while(SPACE, output.hold)
        if (yield from reader.copy_tag(_ID, output.hold)):
            yield from reader.copy_while(_WORD, output.hold)
        yield from reader.copy_tag(_ARGUMENTS, output.hold)
        yield from reader.copy_while(SPACE, output.hold)
        if not name or (yield from reader.peek()) != "{":
            return False
        output.name("".join(name))
        return (yield from copy_value(reader, output.arguments))
