"""``<tool_call>{"name": …, "arguments": {…}}</tool_call>``, as Hermes, Qwen 2.5 and 3, Granite 4 write calls."""

from typing import ClassVar

from gateway.tool_calls.block import copy_to_closing_tag
from gateway.tool_calls.incremental import IncrementalParser
from gateway.tool_calls.json_calls import CallEnd, read_call
from gateway.tool_calls.parser import ToolCallFormat
from gateway.tool_calls.text_reader import SPACE, Parsing, Tags

__all__ = ["HermesParser"]

_OPENING = "<tool_call>"
_CLOSING = "</tool_call>"
_OPENING_TAGS = Tags(_OPENING)
_TAGS = Tags(_OPENING, _CLOSING)


class HermesParser(IncrementalParser):
    """A tag that no object with a name follows is content, together with what was read until that showed."""

    format: ClassVar[ToolCallFormat | None] = ToolCallFormat(
        begin="",
        separator="\n",
        end="",
        call_begin="<tool_call>\n",
        call_end="\n</tool_call>",
        name_key="name",
        arguments_key="arguments",
    )

    def parse(self) -> Parsing[None]:
        """Content and blocks in turn."""
        while tag := (yield from self.reader.copy_until(_OPENING_TAGS, self.output.text)):
            while tag == _OPENING:
                self.output.hold(tag)
                tag = yield from self._read_block()

    def _read_block(self) -> Parsing[str]:
        """Returns the tag that ended it: the closing one, that of the next block, or "" if it was no block."""
        while (end := (yield from read_call(self.reader, self.output))) is CallEnd.CLOSED:
            yield from self.reader.copy_while(SPACE, self.output.hold)
            if (yield from self.reader.peek()) != "{":  # now and then a block holds several objects
                break
        if end is CallEnd.NOT_A_CALL:
            return ""
        return (yield from copy_to_closing_tag(self.reader, self.output, _TAGS, _CLOSING))
