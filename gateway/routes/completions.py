"""POST /v1/completions: several prompts, echo, and log-probabilities with text offsets."""

from collections.abc import Callable, Sequence

import msgspec

from gateway.captured_content import MAX_CHARS, PromptContent
from gateway.generation import ChoiceDelta
from gateway.logprobs import TokenLogprob
from gateway.routes.best_of import keep_best
from gateway.routes.endpoint import Exchange
from gateway.routes.generate import ChoiceResult, Envelope, Origin, answer, make_generation
from gateway.routes.prompts import check_prompt_ids, encode_texts
from gateway.routes.token_details import TokenDetails
from gateway.schema.beam import requested_beam
from gateway.schema.common import Usage, check_common, requested_grammar
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
from gateway.schema.truncation import requested_truncation
from gateway.state import GatewayState
from gateway.text.detokenizer import IncrementalDetokenizer
from observability.request_times import Stopwatch

_encode = msgspec.json.Encoder().encode


async def create(exchange: Exchange) -> None:
    """Parse, check, tokenize, generate, answer."""
    state = exchange.state
    body = decode_request(decoder, await exchange.request.body())
    model = state.check_model(body.model)
    check_common(body, accepts_priority=state.accepts_priority, min_max_tokens=0)
    params = body.to_params(state.max_logprobs)
    grammar = requested_grammar(body)
    beam = requested_beam(body, grammar, body.best_of)
    prompts = body.prompts()
    limits = state.limits()
    check_model_limits(params, limits)
    with Stopwatch() as tokenizing:
        shown, encoded = await _encode_prompts(state, limits, body, prompts)
    envelope = Envelope.new(exchange, "cmpl-", model, body.request_id)
    generations = [
        make_generation(
            exchange,
            body,
            params,
            limits,
            prompt_ids,
            origin=Origin("text_completion", envelope, tokenizing, _content(state, prompt)),
            default_max_tokens=COMPLETION_MAX_TOKENS,
            prompt_name="prompt",
            grammar=grammar,
            beam=beam,
            with_offsets=body.logprobs is not None,
        )
        for prompt, prompt_ids in zip(shown, encoded, strict=True)
    ]
    details = TokenDetails.of(body, state.tokenizer, generations)
    echo = Echo(details, shown, body.logprobs) if body.echo else None
    num_kept = body.num_choices if body.num_generated > body.num_choices else None
    response_format = CompletionFormat(envelope, details, body.logprobs, echo, num_kept)
    await answer(exchange, body, generations, response_format, envelope)


async def _encode_prompts(
    state: GatewayState, limits: ModelLimits, body: CompletionRequest, prompts: Sequence[Prompt]
) -> tuple[Sequence[Prompt], list[list[int]]]:
    """The prompts and their ids. A prompt that was truncated is its ids."""
    truncation = requested_truncation(body, limits, COMPLETION_MAX_TOKENS)
    texts = [prompt for prompt in prompts if isinstance(prompt, str)]
    if not texts:
        every = [prompt for prompt in prompts if isinstance(prompt, list)]
        kept = every if truncation is None else list(map(truncation.of, every))
        return kept, [check_prompt_ids(prompt, limits) for prompt in kept]
    encoded = await encode_texts(
        state,
        limits if truncation is None else None,
        texts,
        add_special_tokens=body.add_special_tokens is not False,
        param="prompt",
    )
    if truncation is None:
        return texts, encoded
    kept = list(map(truncation.of, encoded))
    shown = [ids if ids is not every_id else text for text, every_id, ids in zip(texts, encoded, kept, strict=True)]
    return shown, kept


def _content(state: GatewayState, prompt: Prompt) -> PromptContent | None:
    """The prompt's text where it is to be captured."""
    if not state.captures_content:
        return None
    if isinstance(prompt, str):
        return PromptContent(prompt)
    return PromptContent(state.tokenizer.decode(prompt[:MAX_CHARS], skip_special_tokens=False))


class Echo:
    """The prompts as the beginning of their choices' texts."""

    def __init__(self, details: TokenDetails, prompts: Sequence[Prompt], num_top: int | None) -> None:
        self._details, self._num_top = details, num_top
        self._texts = [
            prompt if isinstance(prompt, str) else details.tokenizer.decode(prompt, skip_special_tokens=False)
            for prompt in prompts
        ]

    def text(self, prompt_index: int) -> str:
        """The prompt as the client sent it; ids are decoded, special tokens included."""
        return self._texts[prompt_index]

    def logprobs(self, prompt_index: int) -> CompletionLogprobs | None:
        """The prompt's log-probabilities, if asked for; the first token has none. Known with the first delta."""
        if self._num_top is None:
            return None
        generation = self._details.generations[prompt_index]
        token_ids, known = generation.request.prompt_ids, generation.prompt_logprobs or []
        shown = format_logprobs(self._details, known, self._offsets(prompt_index)[1:], self._num_top)
        shown.tokens.insert(0, self._details.name(token_ids[0]))
        shown.token_logprobs.insert(0, None)
        if shown.top_logprobs is not None:
            shown.top_logprobs.insert(0, None)
        shown.text_offset.insert(0, 0)
        return shown

    def _offsets(self, prompt_index: int) -> list[int]:
        """Where each token begins in the prompt's text. What the tokenizer put before the text begins at 0."""
        detokenizer = IncrementalDetokenizer(self._details.tokenizer, skip_special_tokens=False)
        detokenizer.push(self._details.generations[prompt_index].request.prompt_ids)
        detokenizer.finish()
        length = len(self._texts[prompt_index])
        num_before = len(detokenizer.text) - length
        return [min(max(offset - num_before, 0), length) for offset in detokenizer.token_offsets]


class CompletionFormat:
    """Completions' chunks and their whole response. ``num_kept``: only so many choices of a prompt are the answer."""

    stream_object = "text_completion"
    num_reasoning_tokens = 0  # text is text

    def __init__(
        self,
        envelope: Envelope,
        details: TokenDetails,
        num_top: int | None,
        echo: Echo | None,
        num_kept: int | None = None,
    ) -> None:
        self._envelope, self._details = envelope, details
        self._num_top, self._echo, self._num_kept = num_top, echo, num_kept

    def opening(self, prompt_index: int) -> bytes | None:
        """The echoed prompt, and what else was asked of it."""
        members = self._details.prompt_members(prompt_index)
        if self._echo is None:
            return b'"text":"","logprobs":null,"finish_reason":null,' + members if members else None
        text, logprobs = _encode(self._echo.text(prompt_index)), _encode(self._echo.logprobs(prompt_index))
        fields = b'"text":%b,"logprobs":%b,"finish_reason":null' % (text, logprobs)
        return b"%b,%b" % (fields, members) if members else fields

    def opening_members(self) -> bytes:
        """Everything is told of the choices."""
        return b""

    def fields(self, prompt_index: int, delta: ChoiceDelta) -> bytes | None:
        """The next piece of text."""
        ids = self._details.ids_member(delta.token_ids)
        if not (delta.text or delta.logprobs or delta.finish_reason or ids):
            return None
        text, logprobs = _encode(delta.text), b"null"
        if delta.logprobs:
            logprobs = _encode(self._logprobs(prompt_index, delta.logprobs, delta.offsets))
        if delta.finish_reason is None:
            return b'"text":%b,"logprobs":%b,"finish_reason":null%b' % (text, logprobs, ids)
        finish = b'"finish_reason":%b,"stop_reason":%b' % (_encode(delta.finish_reason), _encode(delta.stop_reason))
        return b'"text":%b,"logprobs":%b,%b%b' % (text, logprobs, finish, ids)

    def whole(self, results: Sequence[ChoiceResult], usage: Callable[[], Usage]) -> bytes:
        """A ``text_completion``."""
        envelope = self._envelope
        if self._num_kept is not None:
            results = keep_best(results, self._num_kept)
        return _encode(
            Completion(
                id=envelope.id,
                created=envelope.created,
                model=envelope.model,
                choices=[self._choice(result) for result in results],
                usage=usage(),
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
        return CompletionChoice(
            result.index,
            text,
            logprobs,
            result.finish_reason,
            result.stop_reason,
            self._details.ids(result.token_ids),
            **self._details.of_prompt(result.prompt_index),
        )

    def _logprobs(
        self, prompt_index: int, logprobs: Sequence[TokenLogprob], offsets: Sequence[int]
    ) -> CompletionLogprobs:
        if self._echo is not None:
            num_before = len(self._echo.text(prompt_index))
            offsets = [offset + num_before for offset in offsets]
        return format_logprobs(self._details, logprobs, offsets, self._num_top or 0)


def format_logprobs(
    details: TokenDetails, logprobs: Sequence[TokenLogprob], offsets: Sequence[int], num_top: int
) -> CompletionLogprobs:
    """The four lists. Tokens that look the same share one key of ``top_logprobs``, with the higher value."""
    top: list[dict[str, float] | None] = []
    tokens: list[str] = []
    for entry in logprobs:
        text = details.name(entry.token_id)
        tokens.append(text)
        alternatives: dict[str, float] = {}
        for token_id, logprob in entry.top[:num_top]:
            if not details.tokenizer.has_token(token_id):
                continue  # a row of the model's vocabulary that no text has
            alternatives.setdefault(details.name(token_id), logprob)
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
