"""Runs a parser that is written as a generator over text that comes in pieces."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from gateway.tool_calls.functions import parameter_schemas
from gateway.tool_calls.output import ToolCallOutput
from gateway.tool_calls.parser import ParsedDelta, ToolCallFormat
from gateway.tool_calls.text_reader import Parsing, TextReader


class IncrementalParser(ABC):
    """A ToolCallParser whose ``parse`` reads ``reader`` up to its end and writes ``output``."""

    needs_special_tokens: ClassVar[bool] = False
    format: ClassVar[ToolCallFormat | None] = None

    def __init__(self, tools: Sequence[Mapping[str, Any]] = ()) -> None:
        self.schemas = parameter_schemas(tools)
        self.reader = TextReader()
        self.output = ToolCallOutput()
        self._parsing = self.parse()

    @abstractmethod
    def parse(self) -> Parsing[None]:
        """Yields where it needs more text, and returns when the text is over."""

    def is_tool(self, name: str) -> bool:
        """Whether the request has a tool of this name; any name if no tools are known.

        Where no tag tells a call from an answer that looks like one, this does.
        """
        return not self.schemas or name in self.schemas

    def push(self, text: str) -> ParsedDelta:
        """Takes the next piece of the text."""
        self.reader.feed(text)
        next(self._parsing, None)
        return self.output.take()

    def finish(self) -> ParsedDelta:
        """What was withheld."""
        self.reader.has_ended = True
        next(self._parsing, None)
        self.output.finish()
        return self.output.take()
