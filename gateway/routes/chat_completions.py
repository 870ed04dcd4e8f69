"""POST /v1/chat/completions."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from gateway.chat_output import MessageReader, ReasoningCount
from gateway.reasoning.parser import ReasoningParser
from gateway.routes.chat_format import ChatFormat, ChoiceReader
from gateway.routes.endpoint import Exchange
from gateway.routes.generate import Envelope, answer, make_generation
from gateway.routes.prompts import encode_chat, request_template
from gateway.routes.token_details import TokenDetails
from gateway.schema.beam import requested_beam
from gateway.schema.chat import ChatCompletionRequest, decoder
from gateway.schema.common import check_common, requested_grammar
from gateway.schema.decoding import decode_request
from gateway.schema.resolve import check_model_limits
from gateway.schema.structured import GrammarRequest
from gateway.schema.tools import NamedChoice, ToolChoice, call_grammar, check_tools, plain_tools
from gateway.schema.truncation import requested_truncation
from gateway.state import GatewayState
from gateway.text.chat_template import ChatTemplate
from gateway.tool_calls.parser import ToolCallParser
from ipc.errors import RequestError

PROMPT_TAIL = 16
"""Tokens at the prompt's end in which an opening reasoning tag would be."""


async def create(exchange: Exchange) -> None:
    """Parse, check, tokenize, generate, answer."""
    state = exchange.state
    body = decode_request(decoder, await exchange.request.body())
    model = state.check_model(body.model)
    check_common(body, accepts_priority=state.accepts_priority, min_max_tokens=1)
    params = body.to_params(state.max_logprobs)
    limits = state.limits()
    check_model_limits(params, limits, logprobs_name="top_logprobs")
    calls = plan_calls(state, body)
    beam = requested_beam(body, calls.grammar)
    template = await request_template(state, body.chat_template)
    truncation = requested_truncation(body, limits, None)
    prompt_ids = await encode_chat(
        state,
        limits if truncation is None else None,
        body.messages,
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
        template_kwargs=template_kwargs(template or state.chat_template, body),
        tools=calls.tools,
        template=template,
    )
    if truncation is not None:
        prompt_ids = truncation.of(prompt_ids)
    reasoning = state.chat_parsers.reasoning if calls.grammar is None else None
    generation = make_generation(
        exchange,
        body,
        params,
        limits,
        prompt_ids,
        operation="chat",
        default_max_tokens=state.defaults.max_new_tokens,
        prompt_name="messages",
        grammar=calls.grammar,
        beam=beam,
        with_offsets=reasoning is not None,
        keeps_special_tokens=any(
            parser is not None and parser.needs_special_tokens for parser in (calls.parser, reasoning)
        ),
    )
    envelope = Envelope.new(exchange, "chatcmpl-", model, body.request_id)
    response_format = ChatFormat(
        envelope,
        TokenDetails.of(body, state.tokenizer, [generation]),
        reader_factory(state, body, calls, reasoning, prompt_ids),
        has_logprobs=bool(body.logprobs),
        includes_reasoning=body.include_reasoning is not False,
        has_content=not calls.is_forced,
    )
    await answer(exchange, body, [generation], response_format, envelope)


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


def reader_factory(
    state: GatewayState,
    body: ChatCompletionRequest,
    calls: CallPlan,
    reasoning: type[ReasoningParser] | None,
    prompt_ids: list[int],
) -> Callable[[], ChoiceReader] | None:
    """Makes a choice's reader; None where the text is the answer as it is."""
    if calls.parser is None and reasoning is None:
        return None
    starts_open = False
    if reasoning is not None:
        tail = state.tokenizer.decode(prompt_ids[-PROMPT_TAIL:], skip_special_tokens=False)
        starts_open = reasoning.opens_in_prompt(tail)
    return partial(make_reader, body, calls, reasoning, starts_open)


def make_reader(
    body: ChatCompletionRequest, calls: CallPlan, reasoning: type[ReasoningParser] | None, starts_open: bool
) -> ChoiceReader:
    """The parsers of one choice."""
    thoughts = None if reasoning is None else reasoning(starts_open=starts_open)
    tools = None if calls.parser is None else calls.parser(calls.tools)
    message = MessageReader(
        thoughts,
        tools,
        allows_several=body.parallel_tool_calls is not False,
        has_content=not calls.is_forced,
    )
    count = None if thoughts is None else ReasoningCount(thoughts)
    # OpenAI says "stop" where the request itself named the function.
    return ChoiceReader(message, count, ends_as_call=not isinstance(calls.choice, NamedChoice))
