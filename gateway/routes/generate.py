"""What chat and text completions have in common: making the generations, and answering whole or as a stream.

A response format says how deltas and results look; everything else is here.
"""

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from msgspec import UNSET

from gateway.disconnect import cancel_on_disconnect
from gateway.engine_stream import GenerationRequest
from gateway.generation import ChoiceDelta, Generation, TextOptions
from gateway.generation_group import GenerationGroup
from gateway.logprobs import TokenLogprob
from gateway.recorder import CapturedContent, Listeners, RequestFacts, RequestRecorder
from gateway.routes.endpoint import Exchange
from gateway.routes.prompts import off_loop
from gateway.schema.common import GenerationFields, Usage, make_usage
from gateway.schema.deadline import HEADER as DEADLINE_HEADER
from gateway.schema.deadline import deadline_missed, requested_deadline_ns
from gateway.schema.resolve import ModelLimits, resolve_max_tokens, resolve_sampling
from gateway.schema.sampling import GenerationParams
from gateway.schema.structured import GrammarRequest, JsonObjectFormat, JsonSchemaFormat
from gateway.stream_interval import StreamInterval
from gateway.streaming import ChunkEncoder, send_stream
from gateway.tenant_usage import Bill
from gateway.text.bad_words import encode_bad_words
from ipc.errors import RequestError
from ipc.params import BeamParams
from observability.request_log import RequestLog
from observability.request_times import Stopwatch
from observability.request_trace import RequestTrace


@dataclass(frozen=True, slots=True)
class Envelope:
    """What every chunk and the whole response begin with."""

    id: str
    created: int
    model: str
    system_fingerprint: str

    @classmethod
    def new(cls, exchange: Exchange, prefix: str, model: str, request_id: str | None) -> "Envelope":
        """A fresh one. ``request_id``: what the client calls its request."""
        state = exchange.state
        own_id = prefix + (secrets.token_hex(16) if request_id is None else request_id)
        return cls(own_id, int(time.time()), model, state.fingerprint(state.ready()))


@dataclass(frozen=True, slots=True)
class Origin:
    """What traces and log lines say of a generation beside its numbers. ``operation``: chat or text_completion;
    ``tokenizing``: of all prompts of the body; ``content``: None unless it is to be captured."""

    operation: str
    envelope: Envelope
    tokenizing: Stopwatch
    content: CapturedContent | None = None


@dataclass(slots=True)
class ChoiceResult:
    """All deltas of one choice, put together."""

    index: int
    prompt_index: int
    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    finish_reason: str = ""
    stop_reason: str | int | None = None

    def add(self, delta: ChoiceDelta) -> None:
        """What came next."""
        if delta.text:
            self.texts.append(delta.text)
        self.token_ids += delta.token_ids
        self.logprobs += delta.logprobs or ()
        self.offsets += delta.offsets
        if delta.finish_reason:
            self.finish_reason, self.stop_reason = delta.finish_reason, delta.stop_reason

    @property
    def text(self) -> str:
        """The generated text."""
        return "".join(self.texts)


class ResponseFormat(Protocol):
    """How one family of routes writes its answers. ``fields`` are JSON members of a choice, after its index."""

    stream_object: str

    @property
    def num_reasoning_tokens(self) -> int:
        """Of the output so far, over all choices."""

    def opening(self, prompt_index: int) -> bytes | None:
        """The fields of a choice's first chunk, which carries nothing generated."""

    def opening_members(self) -> bytes:
        """JSON members of the response's first chunk, beside its choices; empty if there are none."""

    def fields(self, prompt_index: int, delta: ChoiceDelta) -> bytes | None:
        """The fields of the chunk for ``delta``; None if it has nothing to show yet."""

    def whole(self, results: Sequence[ChoiceResult], usage: Callable[[], Usage]) -> bytes:
        """The body of a response that is not streamed. ``usage`` is asked when all results have been read."""


def make_generation(
    exchange: Exchange,
    body: GenerationFields,
    params: GenerationParams,
    limits: ModelLimits,
    prompt_ids: list[int],
    *,
    origin: Origin,
    default_max_tokens: int | None,
    prompt_name: str,
    grammar: GrammarRequest | None = None,
    beam: BeamParams | None = None,
    with_offsets: bool = False,
    keeps_special_tokens: bool = False,
) -> Generation:
    """The generation of one prompt, everything resolved and checked. Raises RequestError naming the field."""
    state, visit = exchange.state, exchange.admitted
    max_tokens = resolve_max_tokens(
        params.max_tokens,
        default_max_tokens,
        len(prompt_ids),
        limits,
        name=body.max_tokens_name,
        prompt_name=prompt_name,
    )
    sampling = resolve_sampling(
        params, state.defaults, limits, max_tokens, lambda words: encode_bad_words(words, state.tokenizer)
    )
    deadline_ns = requested_deadline_ns(body, exchange.request.headers.get(DEADLINE_HEADER), exchange.arrival_ns)
    if body.spaces_between_special_tokens is False and state.tokenizer.joins_special_tokens_with_spaces:
        name = "spaces_between_special_tokens"
        raise RequestError(f"{name} must not be false: this model's tokenizer puts them", param=name)
    # Only now: a span that has begun should end, and nothing of this prompt can be refused any more.
    trace = exchange.trace.request(origin.operation, origin.envelope.model, exchange.arrival_ns)
    request = GenerationRequest(
        model=state.model_names[0],
        prompt_ids=prompt_ids,
        params=sampling,
        arrival_ns=exchange.arrival_ns,
        n=params.n,
        num_prompt_logprobs=-1 if params.prompt_logprobs is None else params.prompt_logprobs,
        grammar=None if grammar is None else grammar.grammar,
        grammar_param="" if grammar is None else grammar.param,
        beam=beam,
        cache_salt=body.cache_salt or "",
        priority=visit.tenant.priority(body.priority or 0),
        tenant=visit.tenant.name,
        weight=visit.tenant.weight,
        bill=visit.bill,
        deadline_ns=deadline_ns,
        traceparent=trace.traceparent,
        visit=visit.number,
        client_id=exchange.request.scope["state"]["request_id"],
    )
    options = TextOptions(
        stop=params.stop_strings,
        include_stop_str_in_output=params.include_stop_str_in_output,
        skip_special_tokens=params.skip_special_tokens and not keeps_special_tokens,
        with_offsets=with_offsets,
    )
    facts = RequestFacts(
        operation=origin.operation,
        model=origin.envelope.model,
        response_id=origin.envelope.id,
        is_stream=body.is_stream,
        output_type=_output_type(body),
        stop=params.stop_strings,
        tenant=visit.tenant.name,
        server=exchange.server,
        tokenizing=origin.tokenizing,
    )
    recorder = RequestRecorder(state.metrics, request, facts, _listeners(exchange, origin, trace))
    generation = Generation(state.client, request, options, state.tokenizer, recorder)
    visit.attach(generation, num_prompt_tokens=len(prompt_ids), num_choices=params.n, max_tokens=sampling.max_tokens)
    return generation


def _listeners(exchange: Exchange, origin: Origin, trace: RequestTrace) -> Listeners:
    state, log = exchange.state, None
    if state.logs_requests:
        envelope, tenant = origin.envelope, exchange.admitted.tenant.name
        request_id = exchange.request.scope["state"]["request_id"]
        log = RequestLog(request_id, envelope.id, trace.trace_id, tenant, envelope.model)
    return Listeners(trace, log, state.observer, origin.content if trace.is_recording else None)


def _output_type(body: GenerationFields) -> str | None:
    """What the client asks for by name, in the gen_ai convention's words."""
    if body.response_format is None:
        return None
    return "json" if isinstance(body.response_format, JsonObjectFormat | JsonSchemaFormat) else "text"


async def answer(
    exchange: Exchange,
    body: GenerationFields,
    generations: Sequence[Generation],
    response_format: ResponseFormat,
    envelope: Envelope,
) -> None:
    """The whole exchange from here on, streamed or not. The same errors either way."""
    group, bill = GenerationGroup(generations), exchange.admitted.bill if body.return_cost else None
    if body.is_stream:
        events = _Events(group, response_format, envelope, body, bill)
        keep_alive = exchange.state.config.sse_keep_alive_interval
        await send_stream(exchange.receive, exchange.send, group, events, keep_alive=keep_alive)
        return
    num_choices = generations[0].request.n
    results = [ChoiceResult(index, index // num_choices) for index in range(len(generations) * num_choices)]
    async with cancel_on_disconnect(exchange.receive), group:
        await group.accepted()
        while deltas := await group.deltas():
            for prompt_index, delta in deltas:
                results[prompt_index * num_choices + delta.choice].add(delta)
        if bill is not None:
            await bill.until_charged(len(results))
    if all(result.finish_reason == "deadline" for result in results):
        raise deadline_missed()
    encode = partial(response_format.whole, results, partial(_usage, group, response_format, bill))
    await exchange.reply(await off_loop(exchange.state, _num_prompt_logprobs(generations), encode))


def _num_prompt_logprobs(generations: Sequence[Generation]) -> int:
    """How many of them the response may hold: with a long prompt, too many to write on the event loop."""
    return sum(len(one.prompt_logprobs or ()) * (one.request.num_prompt_logprobs + 1) for one in generations)


class _Events:
    """Implements ``event_pump.EventEncoder`` for any response format."""

    def __init__(
        self,
        group: GenerationGroup,
        response_format: ResponseFormat,
        envelope: Envelope,
        body: GenerationFields,
        bill: Bill | None,
    ) -> None:
        self._group, self._format, self._bill = group, response_format, bill
        self._num_choices = group.generations[0].request.n
        self._encoder = ChunkEncoder(
            {
                "id": envelope.id,
                "object": response_format.stream_object,
                "created": envelope.created,
                "model": envelope.model,
                "system_fingerprint": envelope.system_fingerprint,
            },
            has_usage=body.includes_usage,
        )
        self._includes_usage = body.includes_usage
        self._has_continuous_usage = body.includes_continuous_usage
        interval = body.stream_interval or 1
        self._interval = StreamInterval(interval) if interval > 1 else None
        self._opened: set[int] = set()

    def encode(self, deltas: Sequence[tuple[int, ChoiceDelta]]) -> bytes:
        """As many events as the deltas make; a delta without anything to show is no event."""
        if self._interval is not None:
            deltas = self._interval.push(deltas)
        usage = _usage(self._group, self._format, self._bill) if self._has_continuous_usage else None
        chunk = self._encoder.chunk
        events: list[bytes] = []
        for prompt_index, delta in deltas:
            index = prompt_index * self._num_choices + delta.choice
            if index not in self._opened:
                self._opened.add(index)
                opening = self._format.opening(prompt_index)
                if opening is not None:
                    members = self._format.opening_members() if len(self._opened) == 1 else b""
                    events.append(chunk(index, opening, usage, members))
            fields = self._format.fields(prompt_index, delta)
            if fields is not None:
                events.append(chunk(index, fields, usage))
        return b"".join(events)

    async def ending(self) -> bytes:
        """The chunk with the usage, if it was asked for."""
        if not self._includes_usage:
            return b""
        if self._bill is not None:
            await self._bill.until_charged(len(self._group.generations) * self._num_choices)
        return self._encoder.usage_chunk(_usage(self._group, self._format, self._bill))


def _usage(group: GenerationGroup, response_format: ResponseFormat, bill: Bill | None) -> Usage:
    return make_usage(
        group.num_prompt_tokens,
        group.num_output_tokens,
        group.num_cached_tokens,
        response_format.num_reasoning_tokens,
        UNSET if bill is None else bill.cost(),
    )
