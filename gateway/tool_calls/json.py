"""``[{"name": …, "parameters": {…}}, …]``: the form for models that were trained on none, which a grammar forces."""

from typing import ClassVar

from gateway.tool_calls.incremental import IncrementalParser
from gateway.tool_calls.json_calls import read_array
from gateway.tool_calls.parser import ToolCallFormat
from gateway.tool_calls.text_reader import Parsing

__all__ = ["JsonParser"]


class JsonParser(IncrementalParser):
    """Only a text that begins with such an array has calls, and only of the request's tools."""

    format: ClassVar[ToolCallFormat | None] = ToolCallFormat(
        begin="[",
        separator=", ",
        end="]",
        call_begin="",
        call_end="",
        name_key="name",
        arguments_key="parameters",
    )

    def parse(self) -> Parsing[None]:
        """The array, then content."""
        yield from read_array(self.reader, self.output, self.is_tool)
        yield from self.reader.copy_rest(self.output.text)
