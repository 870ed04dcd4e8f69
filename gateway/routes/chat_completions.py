"""POST /v1/chat/completions."""

from collections.abc import Sequence

import msgspec

from gateway.generation import ChoiceDelta
from gateway.logprobs import TokenLogprob
from gateway.routes.endpoint import Exchange
from gateway.routes.generate import ChoiceResult, Envelope, answer, make_generation
from gateway.routes.prompts import encode_chat
from gateway.schema.chat import (
    ChatChoice,
    ChatCompletion,
    ChoiceLogprobs,
    ContentLogprob,
    ResponseMessage,
    TopLogprob,
    decoder,
)
from gateway.schema.common import Usage, check_common
from gateway.schema.decoding import decode_request
from gateway.schema.resolve import check_model_limits
from gateway.text.tokenizer import Tokenizer

_encode = msgspec.json.Encoder().encode
_OPENING = b'"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null'


async def create(exchange: Exchange) -> None:
    """Parse, check, tokenize, generate, answer."""
    state = exchange.state
    body = decode_request(decoder, await exchange.request.body())
    model = state.check_model(body.model)
    check_common(body, accepts_priority=state.accepts_priority, min_max_tokens=1)
    params = body.to_params(state.max_logprobs)
    limits = state.limits()
    check_model_limits(params, limits, logprobs_name="top_logprobs")
    prompt_ids = await encode_chat(
        state,
        limits,
        body.messages,
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
        template_kwargs=body.chat_template_kwargs,
    )
    generation = make_generation(
        exchange,
        body,
        params,
        limits,
        prompt_ids,
        operation="chat",
        default_max_tokens=state.defaults.max_new_tokens,
        prompt_name="messages",
    )
    envelope = Envelope.new(exchange, "chatcmpl-", model)
    response_format = ChatFormat(state.tokenizer, envelope, has_logprobs=bool(body.logprobs))
    await answer(exchange, body, [generation], response_format, envelope)


class ChatFormat:
    """Chat's chunks and its whole response."""

    stream_object = "chat.completion.chunk"

    def __init__(self, tokenizer: Tokenizer, envelope: Envelope, *, has_logprobs: bool) -> None:
        self._tokenizer, self._envelope, self._has_logprobs = tokenizer, envelope, has_logprobs

    def opening(self, prompt_index: int) -> bytes | None:
        """The role."""
        return _OPENING

    def fields(self, prompt_index: int, delta: ChoiceDelta) -> bytes | None:
        """The next piece of content."""
        if not (delta.text or delta.logprobs or delta.finish_reason):
            return None
        content = b'"delta":{"content":%b}' % _encode(delta.text) if delta.text else b'"delta":{}'
        logprobs = b"null" if delta.logprobs is None else _encode(self._logprobs(delta.logprobs))
        if delta.finish_reason is None:
            return b'%b,"logprobs":%b,"finish_reason":null' % (content, logprobs)
        finish = b'"finish_reason":%b,"stop_reason":%b' % (_encode(delta.finish_reason), _encode(delta.stop_reason))
        return b'%b,"logprobs":%b,%b' % (content, logprobs, finish)

    def whole(self, results: Sequence[ChoiceResult], usage: Usage) -> bytes:
        """A ``chat.completion``."""
        choices = [
            ChatChoice(
                result.index,
                ResponseMessage("assistant", result.text),
                self._logprobs(result.logprobs) if self._has_logprobs else None,
                result.finish_reason,
                result.stop_reason,
            )
            for result in results
        ]
        envelope = self._envelope
        return _encode(
            ChatCompletion(
                id=envelope.id,
                created=envelope.created,
                model=envelope.model,
                choices=choices,
                usage=usage,
                system_fingerprint=envelope.system_fingerprint,
            )
        )

    def _logprobs(self, logprobs: Sequence[TokenLogprob]) -> ChoiceLogprobs:
        tokenizer = self._tokenizer
        content: list[ContentLogprob] = []
        for entry in logprobs:
            top = [
                TopLogprob(tokenizer.token_text(token_id), logprob, list(tokenizer.token_bytes(token_id)))
                for token_id, logprob in entry.top
                if tokenizer.has_token(token_id)
            ]
            token_bytes = list(tokenizer.token_bytes(entry.token_id))
            content.append(ContentLogprob(tokenizer.token_text(entry.token_id), entry.logprob, token_bytes, top))
        return ChoiceLogprobs(content)
