"""``{"name": …, "parameters": {…}}``, several apart by ``;`` or white space, as Llama 3.1 to 4 write calls."""

import re
from typing import ClassVar

from gateway.tool_calls.incremental import IncrementalParser
from gateway.tool_calls.json_calls import CallEnd, read_call
from gateway.tool_calls.parser import ToolCallFormat
from gateway.tool_calls.text_reader import SPACE, Parsing, Tags

__all__ = ["Llama3JsonParser"]

_PYTHON_TAG = Tags("<|python_tag|>")
_SEPARATORS = re.compile(r"[ \t\r\n;]+")


class Llama3JsonParser(IncrementalParser):
    """Only a text that begins with an object has calls, and only up to the first that is none of a tool.

    So an answer that is JSON is content, though it is withheld until it shows that it is no call.
    """

    format: ClassVar[ToolCallFormat | None] = ToolCallFormat(
        begin="",
        separator="; ",
        end="",
        call_begin="",
        call_end="",
        name_key="name",
        arguments_key="parameters",
    )

    def parse(self) -> Parsing[None]:
        """Calls, then content."""
        reader, output = self.reader, self.output
        yield from reader.copy_while(SPACE, output.hold)
        while (yield from self._read_call()) is CallEnd.CLOSED:
            yield from reader.copy_while(_SEPARATORS, output.hold)
            if not (yield from reader.peek()):
                output.drop_held()
        yield from reader.copy_rest(output.text)

    def _read_call(self) -> Parsing[CallEnd]:
        yield from self.reader.copy_tag(_PYTHON_TAG, self.output.hold)
        return (yield from read_call(self.reader, self.output, self.is_tool))
