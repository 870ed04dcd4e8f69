"""POST /tokenize and /detokenize."""

import msgspec

from gateway.routes.endpoint import Exchange
from gateway.routes.prompts import encode_chat, encode_texts, off_loop, request_template
from gateway.schema.decoding import decode_request
from gateway.schema.resolve import ModelLimits, check_token_ids
from gateway.schema.tokenize import (
    DetokenizeResponse,
    TokenizeRequest,
    TokenizeResponse,
    detokenize_decoder,
    tokenize_decoder,
)
from gateway.schema.tools import plain_tools
from gateway.state import GatewayState
from ipc.errors import RequestError


async def tokenize(exchange: Exchange) -> None:
    """The ids of a text, or of a conversation as the chat template renders it."""
    state = exchange.state
    body = decode_request(tokenize_decoder, await exchange.request.body())
    state.check_model(body.model)
    body.check()
    limits = state.limits()
    token_ids = await _token_ids(state, limits, body)
    token_strs = [state.tokenizer.token_text(token_id) for token_id in token_ids] if body.return_token_strs else None
    await exchange.reply(
        msgspec.json.encode(TokenizeResponse(len(token_ids), limits.max_model_len, token_ids, token_strs))
    )


async def _token_ids(state: GatewayState, limits: ModelLimits, body: TokenizeRequest) -> list[int]:
    if body.prompt is not None:
        add_special_tokens = body.add_special_tokens is not False
        (token_ids,) = await encode_texts(
            state, limits, [body.prompt], add_special_tokens=add_special_tokens, param="prompt"
        )
        return token_ids
    if body.add_special_tokens:
        raise RequestError(
            "add_special_tokens must not be true with messages: the chat template adds them", param="add_special_tokens"
        )
    template = await request_template(state, body.chat_template)
    return await encode_chat(
        state,
        limits,
        body.messages or [],
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
        template_kwargs=body.chat_template_kwargs or {},
        tools=plain_tools(body.tools or ()),
        template=template,
    )


async def detokenize(exchange: Exchange) -> None:
    """The text of ids."""
    state = exchange.state
    body = decode_request(detokenize_decoder, await exchange.request.body())
    state.check_model(body.model)
    check_token_ids("tokens", body.tokens, state.limits())
    text = await off_loop(
        state, len(body.tokens), lambda: state.tokenizer.decode(body.tokens, skip_special_tokens=False)
    )
    await exchange.reply(msgspec.json.encode(DetokenizeResponse(text)))
