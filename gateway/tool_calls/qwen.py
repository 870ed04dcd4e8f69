"""The XML of Qwen3-Coder and its successors.

``<tool_call><function=NAME><parameter=KEY>VALUE</parameter> … </function></tool_call>``, with line breaks between all
of them. Arguments are sent parameter by parameter, as JSON.
"""

import json
import re

from gateway.tool_calls.block import copy_to_closing_tag
from gateway.tool_calls.incremental import IncrementalParser
from gateway.tool_calls.parameter_value import parameter_json
from gateway.tool_calls.text_reader import SPACE, Emit, Parsing, Tags

__all__ = ["QwenParser"]

_OPENING, _FUNCTION, _CLOSING = "<tool_call>", "<function=", "</tool_call>"
_OPENING_TAGS = Tags(_OPENING, _FUNCTION)  # the outer one is forgotten now and then
_FUNCTION_TAGS = Tags(_FUNCTION)
_CLOSING_TAGS = Tags(_CLOSING)
_TAGS = Tags(_OPENING, _FUNCTION, _CLOSING)
_PARAMETER, _END_OF_FUNCTION = "<parameter=", "</function>"
_MEMBER_TAGS = Tags(_PARAMETER, _END_OF_FUNCTION)
_VALUE_TAGS = Tags("</parameter>")
_NAME = re.compile(r"[^<>\n]+")
_BRACKET = Tags(">")


class QwenParser(IncrementalParser):
    """The call is sent from its name on; values have the types that the tool's schema gives them."""

    def parse(self) -> Parsing[None]:
        """Content and blocks in turn."""
        while tag := (yield from self.reader.copy_until(_OPENING_TAGS, self.output.text)):
            while tag in (_OPENING, _FUNCTION):
                self.output.hold(tag)
                tag = yield from self._read_block(tag)

    def _read_block(self, opening: str) -> Parsing[str]:
        """Returns the tag that ended it: the closing one, that of the next call, or "" for none."""
        reader, output = self.reader, self.output
        name = yield from self._read_name(opening)
        if not name:
            output.stop_call()
            return ""
        output.name(name)
        if (yield from self._read_parameters(name)):
            output.end_call()
        else:
            output.stop_call()
        if opening == _FUNCTION:
            yield from reader.copy_while(SPACE, output.text)
            return (yield from reader.copy_tag(_CLOSING_TAGS, output.drop))
        return (yield from copy_to_closing_tag(reader, output, _TAGS, _CLOSING))

    def _read_name(self, opening: str) -> Parsing[str]:
        """``<function=NAME>``, or what is left of it; "" for anything else."""
        if opening == _OPENING:
            yield from self.reader.copy_while(SPACE, self.output.hold)
            if not (yield from self.reader.copy_tag(_FUNCTION_TAGS, self.output.hold)):
                return ""
        return (yield from self._read_to_bracket(self.output.hold))

    def _read_to_bracket(self, emit: Emit) -> Parsing[str]:
        """``NAME>``; "" for anything else."""
        name: list[str] = []

        def collect(piece: str) -> None:
            name.append(piece)
            emit(piece)

        yield from self.reader.copy_while(_NAME, collect)
        is_closed = yield from self.reader.copy_tag(_BRACKET, emit)
        return "".join(name).strip() if is_closed else ""

    def _read_parameters(self, name: str) -> Parsing[bool]:
        """Up to ``</function>``; False if the text breaks off or goes on with anything else."""
        reader, output = self.reader, self.output
        begin = "{"
        while True:
            yield from reader.copy_while(SPACE, output.drop)
            tag = yield from reader.copy_tag(_MEMBER_TAGS, output.drop)
            if tag == _END_OF_FUNCTION:
                if begin != "{":
                    output.arguments("}")
                return True
            key = (yield from self._read_to_bracket(output.drop)) if tag else ""
            value: list[str] = []
            if not key or not (yield from reader.copy_until(_VALUE_TAGS, value.append)):
                return False
            typed = parameter_json("".join(value), self.schemas.get(name, {}), key)
            output.arguments(f"{begin}{json.dumps(key, ensure_ascii=False)}: {typed}")
            begin = ", "
