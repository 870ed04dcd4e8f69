"""Runs tool call parsers over texts that are cut into pieces in every way."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gateway import registry
from gateway.tool_calls.parser import ToolCallParser

KIND = "tool_call_parsers"
NAMES = registry.names(KIND)
CLASSES = {name: registry.load(KIND, name) for name in NAMES}


@dataclass
class Parsed:
    """All of a response: calls as (name, arguments)."""

    content: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)


def new_parser(name: str, tools: Sequence[Mapping[str, Any]] = ()) -> ToolCallParser:
    parser: ToolCallParser = CLASSES[name](tools)
    return parser


def parse(name: str, pieces: Iterable[str], tools: Sequence[Mapping[str, Any]] = ()) -> Parsed:
    """Puts the deltas together and checks that each is one that a client can use."""
    parser, parsed = new_parser(name, tools), Parsed()
    deltas = [parser.push(piece) for piece in pieces]
    for delta in [*deltas, parser.finish()]:
        parsed.content += delta.content
        indices = [call.index for call in delta.tool_calls]
        assert indices == sorted(set(indices))
        for call in delta.tool_calls:
            if call.index == len(parsed.calls):
                assert call.name
                parsed.calls.append((call.name, call.arguments))
            else:  # only the last call goes on, and its name is not repeated
                assert call.index == len(parsed.calls) - 1
                assert call.name is None
                assert call.arguments
                sent_name, sent = parsed.calls[-1]
                parsed.calls[-1] = (sent_name, sent + call.arguments)
    return parsed


def ways_to_cut(text: str) -> Iterator[list[str]]:
    """Whole, in single characters, and in two at every place."""
    yield [text]
    yield list(text)
    for index in range(len(text) + 1):
        yield [text[:index], text[index:]]


def check(name: str, text: str, content: str, calls: list[tuple[str, str]], tools: Sequence[Any] = ()) -> None:
    """The text comes to this, however it is cut."""
    for pieces in ways_to_cut(text):
        assert parse(name, pieces, tools) == Parsed(content, calls), pieces


def tool(name: str, **properties: Any) -> dict[str, Any]:
    """A function as the OpenAI API has it."""
    parameters = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "description": f"Does {name}.", "parameters": parameters}}
