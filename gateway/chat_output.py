"""One choice's generated text as the parts of a chat message: reasoning, content and tool calls.

Knows the two kinds of parsers and nothing of HTTP. A whole text pushed at once comes to the same as its pieces.
"""

import secrets
from dataclasses import dataclass, field

from gateway.reasoning.parser import ReasoningParser
from gateway.tool_calls.parser import ToolCallParser


@dataclass(slots=True)
class CallDelta:
    """More of the tool call ``index``; ``id`` and ``name`` in its first delta."""

    index: int
    arguments: str
    id: str | None = None
    name: str | None = None


@dataclass(slots=True)
class MessageDelta:
    """What one piece of text added to the message."""

    reasoning: str = ""
    content: str = ""
    tool_calls: list[CallDelta] = field(default_factory=list)


class MessageReader:
    """The parsers of one choice, one behind the other; either may be missing.

    ``allows_several``: otherwise calls after the first are dropped (``parallel_tool_calls`` false).
    ``has_content`` false: a grammar forces calls, and text is at most one that was cut off.
    """

    def __init__(
        self,
        reasoning: ReasoningParser | None,
        tool_calls: ToolCallParser | None,
        *,
        allows_several: bool = True,
        has_content: bool = True,
    ) -> None:
        self._reasoning, self._tool_calls = reasoning, tool_calls
        self._most_calls = None if allows_several else 1
        self._has_content = has_content
        self.num_calls = 0

    def read(self, text: str, *, is_last: bool) -> MessageDelta:
        """The next piece of the text; with the last one what was withheld, too."""
        delta, content = MessageDelta(), text
        if self._reasoning is not None:
            parts = [self._reasoning.push(text), *([self._reasoning.finish()] if is_last else ())]
            delta.reasoning = "".join(part.reasoning for part in parts)
            content = "".join(part.content for part in parts)
        if self._tool_calls is None:
            delta.content = content
            return delta
        for parsed in (self._tool_calls.push(content), *([self._tool_calls.finish()] if is_last else ())):
            delta.content += parsed.content if self._has_content else ""
            for call in parsed.tool_calls:
                self._add(delta, call.index, call.arguments, call.name)
        return delta

    def _add(self, delta: MessageDelta, index: int, arguments: str, name: str | None) -> None:
        if self._most_calls is not None and index >= self._most_calls:
            return
        known = next((call for call in delta.tool_calls if call.index == index), None)
        if known is not None:
            known.arguments += arguments
            return
        self.num_calls = max(self.num_calls, index + 1)
        call_id = None if name is None else f"call_{secrets.token_hex(12)}"
        delta.tool_calls.append(CallDelta(index, arguments, call_id, name))


class ReasoningCount:
    """How many tokens of one choice are reasoning: those that begin before its end."""

    def __init__(self, parser: ReasoningParser) -> None:
        self._parser = parser
        self._offsets: list[int] = []
        self._is_over = False

    def add(self, offsets: list[int]) -> None:
        """Where the newest tokens begin in the text. Called after the text was pushed."""
        if self._is_over:
            return
        self._offsets += offsets
        end = self._parser.end_offset
        if end is not None:
            self._offsets = [offset for offset in self._offsets if offset < end]
            self._is_over = True

    @property
    def num_tokens(self) -> int:
        """So far."""
        return len(self._offsets) if self._is_over or self._parser.is_open else 0
