"""POST /v1/chat/completions."""

from gateway.captured_content import ChatContent
from gateway.routes.chat_format import ChatFormat
from gateway.routes.chat_plan import AnswerPlan, plan_calls, template_kwargs
from gateway.routes.endpoint import Exchange
from gateway.routes.generate import Envelope, Origin, answer, make_generation
from gateway.routes.prompts import encode_chat, request_template
from gateway.routes.token_details import TokenDetails
from gateway.schema.beam import requested_beam
from gateway.schema.chat import decoder, plain_messages
from gateway.schema.common import check_common
from gateway.schema.decoding import decode_request
from gateway.schema.resolve import check_model_limits
from gateway.schema.truncation import requested_truncation
from observability.request_times import Stopwatch


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
    truncation = requested_truncation(body, limits, None)
    with Stopwatch() as tokenizing:
        template = await request_template(state, body.chat_template)
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
    plan = AnswerPlan.of(state, calls, prompt_ids)
    envelope = Envelope.new(exchange, "chatcmpl-", model, body.request_id)
    content = ChatContent(plain_messages(body.messages)) if state.captures_content else None
    generation = make_generation(
        exchange,
        body,
        params,
        limits,
        prompt_ids,
        origin=Origin("chat", envelope, tokenizing, content),
        default_max_tokens=state.defaults.max_new_tokens,
        prompt_name="messages",
        grammar=plan.grammar,
        beam=beam,
        with_offsets=plan.reasoning is not None,
        keeps_special_tokens=plan.keeps_special_tokens,
    )
    response_format = ChatFormat(
        envelope,
        TokenDetails.of(body, state.tokenizer, [generation]),
        plan.reader_factory(allows_several=body.parallel_tool_calls is not False),
        has_logprobs=bool(body.logprobs),
        includes_reasoning=body.include_reasoning is not False,
        has_content=not calls.is_forced,
    )
    await answer(exchange, body, [generation], response_format, envelope)
