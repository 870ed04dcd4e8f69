"""Tools: what a chat request offers, what it wants called, and the grammar that forces it."""

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from gateway.schema.structured import GrammarRequest, schema_text
from gateway.tool_calls.parser import ToolCallFormat
from ipc.errors import RequestError
from ipc.grammar import CallGrammar, Tag

MAX_TOOLS = 1024
NO_PARAMETERS: dict[str, Any] = {"properties": {}, "additionalProperties": False}
"""Of a function that says nothing of any: OpenAI's API calls it with {}."""

MAX_CALLS = 128
"""Most calls of one answer that is forced to call."""


class Function(msgspec.Struct, forbid_unknown_fields=True):
    """A function that the model may call; ``parameters`` is the JSON schema of its arguments."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(msgspec.Struct, forbid_unknown_fields=True):
    """One tool of a request."""

    function: Function
    type: Literal["function"] = "function"


class NamedFunction(msgspec.Struct, forbid_unknown_fields=True):
    """The function that must be called."""

    name: str


class NamedChoice(msgspec.Struct, forbid_unknown_fields=True):
    """``tool_choice`` by name."""

    function: NamedFunction
    type: Literal["function"] = "function"


ToolChoice = Literal["none", "auto", "required"] | NamedChoice


def check_tools(tools: Sequence[Tool] | None, choice: ToolChoice | None) -> ToolChoice:
    """The choice, resolved: auto if there are tools and nothing is said. Raises RequestError naming the field."""
    names = [tool.function.name for tool in tools or ()]
    if len(names) > MAX_TOOLS:
        raise RequestError(f"tools may hold at most {MAX_TOOLS} tools, not {len(names)}", param="tools")
    for index, name in enumerate(names):
        where = f"tools[{index}].function.name"
        if not 1 <= len(name) <= 256 or not name.isprintable():
            raise RequestError(f"{where} must have 1 to 256 printable characters", param=where)
        if name in names[:index]:
            raise RequestError(f"{where}: there is another tool of this name", param=where)
    if choice is None:
        return "auto" if names else "none"
    if choice != "none" and not names:
        raise RequestError("tool_choice needs tools", param="tool_choice")
    if isinstance(choice, NamedChoice) and choice.function.name not in names:
        raise RequestError(
            f"tool_choice: there is no tool {choice.function.name[:100]!r}", param="tool_choice.function.name"
        )
    return choice


def plain_tools(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """As chat templates take them: without the fields that say nothing."""
    return [
        {
            "type": tool.type,
            "function": {
                name: value
                for name, value in msgspec.structs.asdict(tool.function).items()
                if value is not None and name != "strict"
            },
        }
        for tool in tools
    ]


def call_grammar(
    tools: Sequence[Tool], choice: ToolChoice, format: ToolCallFormat, *, allows_several: bool
) -> GrammarRequest:
    """Calls and nothing else, of the tools that ``choice`` leaves. Raises RequestError for a schema."""
    is_named = isinstance(choice, NamedChoice)
    called = [
        (index, tool.function)
        for index, tool in enumerate(tools)
        if not isinstance(choice, NamedChoice) or tool.function.name == choice.function.name
    ]
    tags = []
    for index, function in called:
        name = msgspec.json.encode(function.name).decode()
        begin = f'{format.call_begin}{{"{format.name_key}": {name}, "{format.arguments_key}": '
        schema: dict[str, Any] = {"type": "object", **(function.parameters or NO_PARAMETERS)}
        tags.append(Tag(begin, schema_text(schema, f"tools[{index}].function.parameters"), "}" + format.call_end))
    is_strict = all(function.strict for _, function in called)
    max_calls = MAX_CALLS if allows_several and not is_named else 1
    grammar = CallGrammar(format.begin, format.separator, format.end, tuple(tags), max_calls, is_strict)
    return GrammarRequest(("tool_calls", msgspec.json.encode(grammar).decode()), "tools")
