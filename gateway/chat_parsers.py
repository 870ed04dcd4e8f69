"""Which parsers a model's answers need: named by the operator, else found by its chat template."""

from dataclasses import dataclass, replace

from gateway import registry
from gateway.reasoning.detect import detect_reasoning_parser
from gateway.reasoning.parser import ReasoningParser
from gateway.text.chat_template import ChatTemplate
from gateway.tool_calls.detect import detect_tool_call_parser
from gateway.tool_calls.hermes import HermesParser
from gateway.tool_calls.json import JsonParser
from gateway.tool_calls.parser import ToolCallFormat, ToolCallParser
from ipc.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ChatParsers:
    """``tool_calls`` None: how the model writes calls is not known, or not to be looked at.

    ``describes_tools``: the model's template does not know tools, so a message tells the model of them.
    """

    tool_calls: type[ToolCallParser] | None
    reasoning: type[ReasoningParser] | None
    describes_tools: bool = False

    @classmethod
    def choose(cls, tool_call_parser: str, reasoning_parser: str, template: ChatTemplate) -> "ChatParsers":
        """``auto``, ``none`` or a name each. Raises ConfigError for a name that is none's.

        A model whose template does not know tools is told of them in hermes' way.
        """
        source = template.sources.get("tool_use") or template.sources.get("default", "")
        tools = tool_call_parser
        if tools == "auto":
            tools = detect_tool_call_parser(source) or ("none" if template.reads("tools") else "hermes")
        reasoning = reasoning_parser
        if reasoning == "auto":
            reasoning = detect_reasoning_parser(source) or "none"
        return cls(
            _load("tool_call_parsers", tools, "--tool-call-parser"),
            _load("reasoning_parsers", reasoning, "--reasoning-parser"),
            describes_tools=not template.reads("tools"),
        )

    @property
    def described_format(self) -> ToolCallFormat:
        """How tools are to be called by a model that is told so in a message.

        Nothing stands between two calls: small models that may write a line break there go on for ever.
        """
        own = None if self.tool_calls is None else self.tool_calls.format
        format = own or HermesParser.format
        assert format is not None
        return replace(format, separator="") if format.call_end else format

    def forced(self) -> tuple[type[ToolCallParser], ToolCallFormat]:
        """The parser and the format in which calls can be forced: the model's own if it is made of JSON objects."""
        own = self.tool_calls
        if own is not None and own.format is not None:
            return own, self.described_format if self.describes_tools else own.format
        assert JsonParser.format is not None
        return JsonParser, JsonParser.format


def _load(kind: str, name: str, flag: str) -> type | None:
    if name == "none":
        return None
    try:
        found: type = registry.load(kind, name)
    except ConfigError as error:
        raise ConfigError(f"{flag}: {error}") from error
    return found
