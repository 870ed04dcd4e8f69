"""What a chat answer will be made of: tools and who reads their calls, reasoning, and the grammar of it all."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import msgspec

from gateway.chat_output import MessageReader, ReasoningCount
from gateway.reasoning.parser import ReasoningParser
from gateway.routes.chat_format import ChoiceReader
from gateway.schema.chat import ChatCompletionRequest
from gateway.schema.common import requested_grammar
from gateway.schema.structured import GrammarRequest
from gateway.schema.tools import NamedChoice, ToolChoice, call_grammar, check_tools, plain_tools
from gateway.state import GatewayState
from gateway.text.chat_template import ChatTemplate
from gateway.tool_calls.parser import ToolCallParser
from ipc.errors import RequestError
from ipc.grammar import ReasonedGrammar

PROMPT_TAIL = 16
"""Tokens at the prompt's end in which an opening reasoning tag would be."""


@dataclass(frozen=True, slots=True)
class CallPlan:
    """What a request wants of its tools. ``tools``: those that the model is told of; ``parser`` None: text is text."""

    choice: ToolChoice
    tools: Sequence[Mapping[str, Any]]
    parser: type[ToolCallParser] | None
    grammar: GrammarRequest | None

    @property
    def is_forced(self) -> bool:
        """The grammar is one of calls and nothing else."""
        return self.parser is not None and self.choice != "auto"


def plan_calls(state: GatewayState, body: ChatCompletionRequest) -> CallPlan:
    """The tools, and the grammar of the output whoever asks for it. Raises RequestError naming the field."""
    choice = check_tools(body.tools, body.tool_choice)
    grammar = requested_grammar(body)
    if choice == "none" or not body.tools:
        return CallPlan(choice, (), None, grammar)
    tools = plain_tools(body.tools)
    if choice == "auto":
        parser = state.chat_parsers.tool_calls
        if parser is None:
            raise RequestError(
                "tool_choice auto needs a server that knows how this model writes tool calls: --tool-call-parser",
                param="tool_choice",
            )
        return CallPlan(choice, tools, parser, grammar)
    if grammar is not None:
        raise RequestError(f"{grammar.param} does not go with a tool_choice that forces a call", param="tool_choice")
    parser, format = state.chat_parsers.forced()
    allows_several = body.parallel_tool_calls is not False
    return CallPlan(choice, tools, parser, call_grammar(body.tools, choice, format, allows_several=allows_several))


def template_kwargs(template: ChatTemplate, body: ChatCompletionRequest) -> dict[str, object]:
    """What the template is given beside messages and tools. Raises RequestError for what it would not look at."""
    kwargs = dict(body.chat_template_kwargs or {})
    if body.documents:
        if not template.reads("documents"):
            raise RequestError("documents: the chat template does not look at them", param="documents")
        kwargs["documents"] = body.documents
    if body.reasoning_effort is not None:
        known = [name for name in ("reasoning_effort", "enable_thinking") if template.reads(name)]
        if not known and body.reasoning_effort != "none":
            raise RequestError("reasoning_effort: the chat template does not look at it", param="reasoning_effort")
        values = {"reasoning_effort": body.reasoning_effort, "enable_thinking": body.reasoning_effort != "none"}
        kwargs |= {name: values[name] for name in known}
    return kwargs


@dataclass(frozen=True, slots=True)
class AnswerPlan:
    """``reasoning`` None: thoughts are text. ``starts_open``: the prompt ends with their opening tag."""

    calls: CallPlan
    reasoning: type[ReasoningParser] | None
    starts_open: bool
    grammar: GrammarRequest | None

    @classmethod
    def of(cls, state: GatewayState, calls: CallPlan, prompt_ids: list[int]) -> "AnswerPlan":
        """A grammar begins behind the reasoning, unless its tags are special tokens, which grammars do not know."""
        reasoning, grammar = state.chat_parsers.reasoning, calls.grammar
        if reasoning is None or (grammar is not None and reasoning.needs_special_tokens):
            return cls(calls, None, False, grammar)
        tail = state.tokenizer.decode(prompt_ids[-PROMPT_TAIL:], skip_special_tokens=False)
        starts_open = reasoning.opens_in_prompt(tail)
        if grammar is not None:
            grammar = _behind_reasoning(grammar, reasoning, is_open=reasoning(starts_open=starts_open).is_open)
        return cls(calls, reasoning, starts_open, grammar)

    @property
    def keeps_special_tokens(self) -> bool:
        """A parser looks for some."""
        parsers = (self.calls.parser, self.reasoning)
        return any(parser is not None and parser.needs_special_tokens for parser in parsers)

    def reader_factory(self, *, allows_several: bool) -> Callable[[], ChoiceReader] | None:
        """Makes a choice's reader; None where the text is the answer as it is."""
        if self.calls.parser is None and self.reasoning is None:
            return None
        return partial(self._make_reader, allows_several)

    def _make_reader(self, allows_several: bool) -> ChoiceReader:
        thoughts = None if self.reasoning is None else self.reasoning(starts_open=self.starts_open)
        tools = None if self.calls.parser is None else self.calls.parser(self.calls.tools)
        has_content = not self.calls.is_forced
        message = MessageReader(thoughts, tools, allows_several=allows_several, has_content=has_content)
        count = None if thoughts is None else ReasoningCount(thoughts)
        # OpenAI says "stop" where the request itself named the function.
        return ChoiceReader(message, count, ends_as_call=not isinstance(self.calls.choice, NamedChoice))


def _behind_reasoning(grammar: GrammarRequest, parser: type[ReasoningParser], *, is_open: bool) -> GrammarRequest:
    reasoned = ReasonedGrammar(*grammar.grammar, parser.opening_tags[0], parser.closing_tags[0], is_open)
    return replace(grammar, grammar=("reasoned", msgspec.json.encode(reasoned).decode()))
