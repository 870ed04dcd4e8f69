"""What a tool call parser is: it turns generated text, as it comes, into content and calls of tools.

However the text is cut into pieces, the content and each call's arguments come to the same. No text makes a parser
raise: what is not a call is content. Ids of calls are made by the caller.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol


@dataclass(slots=True)
class ToolCallDelta:
    """More of the call ``index`` (0, 1, …): ``name`` in its first delta only, and there ``arguments`` may be empty.

    ``arguments`` is the next piece of a JSON text, verbatim where the model writes JSON. What was sent stays: the
    pieces of a call that the model broke off, or did not get right, make no whole text, and may come to "".
    """

    index: int
    arguments: str
    name: str | None = None


@dataclass(slots=True)
class ParsedDelta:
    """What one piece of text added; of the tool calls at most one delta for each index, in their order."""

    content: str = ""
    tool_calls: list[ToolCallDelta] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ToolCallFormat:
    """How calls are spelled that are JSON objects: what a grammar needs to force them.

    The text is ``begin``, the calls with ``separator`` between them, ``end``. A call is ``call_begin``, an object with
    the keys ``name_key`` and ``arguments_key`` in this order, ``call_end``.
    """

    begin: str
    separator: str
    end: str
    call_begin: str
    call_end: str
    name_key: str
    arguments_key: str


class ToolCallParser(Protocol):
    """The parser of one response.

    ``needs_special_tokens``: the format is spelled with special tokens of the tokenizer, which must stay in the text.
    ``format``: None if calls are no JSON objects.
    """

    needs_special_tokens: ClassVar[bool]
    format: ClassVar[ToolCallFormat | None]

    def __init__(self, tools: Sequence[Mapping[str, Any]] = ()) -> None:
        """``tools``: the request's, as the OpenAI API has them."""

    def push(self, text: str) -> ParsedDelta:
        """Takes the next piece of the text."""

    def finish(self) -> ParsedDelta:
        """The text is over: what was withheld. Nothing is pushed afterwards."""
