"""POST /v1/completions: several prompts, echo, and log-probabilities with text offsets."""

from collections.abc import Sequence

import msgspec

from gateway.generation import ChoiceDelta, Generation
from gateway.logprobs import TokenLogprob
from gateway.routes.endpoint import Exchange
from gateway.routes.generate import ChoiceResult, Envelope, answer, make_generation
from gateway.routes.prompts import check_prompt_ids, encode_texts
from gateway.schema.common import Usage, check_common
from gateway.schema.completions import (
    Completion,
    CompletionChoice,
    CompletionLogprobs,
    CompletionRequest,
    Prompt,
    decoder,
)
from gateway.schema.decoding import decode_request
from gateway.schema.resolve import COMPLETION_MAX_TOKENS, ModelLimits, check_model_limits
from gateway.state import GatewayState
from gateway.text.detokenizer import IncrementalDetokenizer
from gateway.text.tokenizer import Tokenizer

_encode = msgspec.json.Encoder().encode


async def create(exchange: Exchange) -> None:
    """Parse, check, tokenize, generate, answer."""
    state = exchange.state
    body = decode_request(decoder, await exchange.request.body())
    model = state.check_model(body.model)
    check_common(body, accepts_priority=state.accepts_priority, min_max_tokens=0)
    params = body.to_params(state.max_logprobs)
    prompts = body.prompts()
    limits = state.limits()
    check_model_limits(params, limits)
    generations = [
        make_generation(
            exchange,
            body,
            params,
            limits,
            prompt_ids,
            operation="text_completion",
            default_max_tokens=COMPLETION_MAX_TOKENS,
            prompt_name="prompt",
            with_offsets=body.logprobs is not None,
        )
        for prompt_ids in await _encode_prompts(state, limits, body, prompts)
    ]
    envelope = Envelope.new(exchange, "cmpl-", model)
    echo = Echo(state.tokenizer, prompts, generations, body.logprobs) if body.echo else None
    response_format = CompletionFormat(state.tokenizer, envelope, body.logprobs, echo)
    await answer(exchange, body, generations, response_format, envelope)


async def _encode_prompts(
    state: GatewayState, limits: ModelLimits, body: CompletionRequest, prompts: Sequence[Prompt]
) -> list[list[int]]:
    texts = [prompt for prompt in prompts if isinstance(prompt, str)]
    if texts:  # then all of them are
        add_special_tokens = body.add_special_tokens is not False
        return await encode_texts(state, limits, texts, add_special_tokens=add_special_tokens, param="prompt")
    return [check_prompt_ids(prompt, limits) for prompt in prompts if isinstance(prompt, list)]


class Echo:
    """The prompts as the beginning of their choices' texts."""

    def __init__(
        self, tokenizer: Tokenizer, prompts: Sequence[Prompt], generations: Sequence[Generation], num_top: int | None
    ) -> None:
        self._tokenizer, self._generations = tokenizer, generations
        self._num_top = num_top
        self._texts = [
            prompt if isinstance(prompt, str) else tokenizer.decode(prompt, skip_special_tokens=False)
            for prompt in prompts
        ]

    def text(self, prompt_index: int) -> str:
        """The prompt as the client sent it; ids are decoded, special tokens included."""
        return self._texts[prompt_index]

    def logprobs(self, prompt_index: int) -> CompletionLogprobs | None:
        """The prompt's log-probabilities, if asked for; the first token has none. Known with the first delta."""
        if self._num_top is None:
            return None
        generation = self._generations[prompt_index]
        token_ids, known = generation.request.prompt_ids, generation.prompt_logprobs or []
        shown = format_logprobs(self._tokenizer, known, self._offsets(prompt_index)[1:], self._num_top)
        shown.tokens.insert(0, self._tokenizer.token_text(token_ids[0]))
        shown.token_logprobs.insert(0, None)
        if shown.top_logprobs is not None:
            shown.top_logprobs.insert(0, None)
        shown.text_offset.insert(0, 0)
        return shown

    def _offsets(self, prompt_index: int) -> list[int]:
        """Where each token begins in the prompt's text. What the tokenizer put before the text begins at 0."""
        detokenizer = IncrementalDetokenizer(self._tokenizer, skip_special_tokens=False)
        detokenizer.push(self._generations[prompt_index].request.prompt_ids)
        detokenizer.finish()
        length = len(self._texts[prompt_index])
        num_before = len(detokenizer.text) - length
        return [min(max(offset - num_before, 0), length) for offset in detokenizer.token_offsets]


class CompletionFormat:
    """Completions' chunks and their whole response."""

    stream_object = "text_completion"

    def __init__(self, tokenizer: Tokenizer, envelope: Envelope, num_top: int | None, echo: Echo | None) -> None:
        self._tokenizer, self._envelope = tokenizer, envelope
        self._num_top, self._echo = num_top, echo

    def opening(self, prompt_index: int) -> bytes | None:
        """The echoed prompt."""
        if self._echo is None:
            return None
        text, logprobs = _encode(self._echo.text(prompt_index)), _encode(self._echo.logprobs(prompt_index))
        return b'"text":%b,"logprobs":%b,"finish_reason":null' % (text, logprobs)

    def fields(self, prompt_index: int, delta: ChoiceDelta) -> bytes | None:
        """The next piece of text."""
        if not (delta.text or delta.logprobs or delta.finish_reason):
            return None
        text, logprobs = _encode(delta.text), b"null"
        if delta.logprobs:
            logprobs = _encode(self._logprobs(prompt_index, delta.logprobs, delta.offsets))
        if delta.finish_reason is None:
            return b'"text":%b,"logprobs":%b,"finish_reason":null' % (text, logprobs)
        finish = b'"finish_reason":%b,"stop_reason":%b' % (_encode(delta.finish_reason), _encode(delta.stop_reason))
        return b'"text":%b,"logprobs":%b,%b' % (text, logprobs, finish)

    def whole(self, results: Sequence[ChoiceResult], usage: Usage) -> bytes:
        """A ``text_completion``."""
        envelope = self._envelope
        return _encode(
            Completion(
                id=envelope.id,
                created=envelope.created,
                model=envelope.model,
                choices=[self._choice(result) for result in results],
                usage=usage,
                system_fingerprint=envelope.system_fingerprint,
            )
        )

    def _choice(self, result: ChoiceResult) -> CompletionChoice:
        text, logprobs = result.text, None
        if self._num_top is not None:
            logprobs = self._logprobs(result.prompt_index, result.logprobs, result.offsets)
        if self._echo is not None:
            text = self._echo.text(result.prompt_index) + text
            prompt = self._echo.logprobs(result.prompt_index)
            logprobs = logprobs if prompt is None or logprobs is None else _joined(prompt, logprobs)
        return CompletionChoice(result.index, text, logprobs, result.finish_reason, result.stop_reason)

    def _logprobs(
        self, prompt_index: int, logprobs: Sequence[TokenLogprob], offsets: Sequence[int]
    ) -> CompletionLogprobs:
        if self._echo is not None:
            num_before = len(self._echo.text(prompt_index))
            offsets = [offset + num_before for offset in offsets]
        return format_logprobs(self._tokenizer, logprobs, offsets, self._num_top or 0)


def format_logprobs(
    tokenizer: Tokenizer, logprobs: Sequence[TokenLogprob], offsets: Sequence[int], num_top: int
) -> CompletionLogprobs:
    """The four lists. Tokens that look the same share one key of ``top_logprobs``, with the higher value."""
    top: list[dict[str, float] | None] = []
    tokens: list[str] = []
    for entry in logprobs:
        text = tokenizer.token_text(entry.token_id)
        tokens.append(text)
        alternatives: dict[str, float] = {}
        for token_id, logprob in entry.top:
            if not tokenizer.has_token(token_id):
                continue  # a row of the model's vocabulary that no text has
            alternatives.setdefault(tokenizer.token_text(token_id), logprob)
        alternatives.setdefault(text, entry.logprob)
        top.append(alternatives)
    values: list[float | None] = [entry.logprob for entry in logprobs]
    return CompletionLogprobs(tokens, values, top if num_top else None, list(offsets))


def _joined(first: CompletionLogprobs, second: CompletionLogprobs) -> CompletionLogprobs:
    has_top = first.top_logprobs is not None and second.top_logprobs is not None
    return CompletionLogprobs(
        first.tokens + second.tokens,
        first.token_logprobs + second.token_logprobs,
        [*(first.top_logprobs or ()), *(second.top_logprobs or ())] if has_top else None,
        first.text_offset + second.text_offset,
    )
