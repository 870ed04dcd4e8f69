"""The gateway's handle on an engine: submit a request at token level, get its outputs, abort it.

Keeps for each request everything an engine needs to continue it: the prompt and every token received (design 8).
Knows no HTTP and no text. One thread only, the event loop's.
"""

import asyncio
import itertools
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol

import msgspec

from gateway.engine_connection import EngineConnection
from gateway.notifier import Notifier
from gateway.quarantine import Quarantine, Verdict
from ipc.codec import pack_ids, unpack_ids
from ipc.errors import CapacityError, EngineError, RequestError
from ipc.messages import (
    Abort,
    Accepted,
    Add,
    Beat,
    Drain,
    Event,
    EventKind,
    Failed,
    Finish,
    FinishReason,
    Output,
    Outputs,
    Ready,
    Refused,
    Stats,
    ToGateway,
    TokenLogprobs,
)
from ipc.params import BeamParams, SamplingParams

NOT_READY = "the engine is not ready"
INVALID_GRAMMAR = "invalid_grammar"
CLIENT_FAULTS = frozenset({"invalid", "impossible", "no_token_left", INVALID_GRAMMAR})
UNAVAILABLE = frozenset({"draining", "not_ready"})


class Bill(Protocol):
    """Who is told what a request has cost."""

    def charge(self, device_ns: int, kv_block_ns: int) -> None: ...


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """What is asked of an engine. ``arrival_ns``: monotonic, when the client's request came in. ``grammar_param``: the
    client's field that asks for ``grammar``."""

    model: str
    prompt_ids: list[int]
    params: SamplingParams
    arrival_ns: int
    n: int = 1
    num_prompt_logprobs: int = -1
    grammar: tuple[str, str] | None = None
    grammar_param: str = ""
    beam: BeamParams | None = None
    cache_salt: str = ""
    priority: int = 0
    tenant: str = ""
    traceparent: str = ""
    weight: float = 1.0
    bill: Bill | None = None
    deadline_ns: int = 0  # on the clock of ``arrival_ns``; 0: none


class ChoiceOutput(msgspec.Struct, gc=False):
    """News of one choice. ``finish`` is set exactly once a choice; ``time_ns``: when the engine knew."""

    choice: int
    token_ids: list[int]
    logprobs: TokenLogprobs | None
    finish: FinishReason | None
    stop_token_id: int | None
    num_cached_tokens: int
    prompt_logprobs: TokenLogprobs | None
    events: tuple[Event, ...]
    time_ns: int


@dataclass(slots=True)
class ChoiceProgress:
    """What is known of a choice: enough to continue it elsewhere. ``end``: after so many tokens a stop string ended it,
    and the engine was told."""

    token_ids: list[int] = field(default_factory=list)
    is_finished: bool = False
    num_cached_tokens: int = 0
    end: int | None = None


class EngineStream:
    """One request on its way. Leaving the context aborts whatever has not ended.

    ``notifier`` is told when ``take`` has something new to return or to raise: once for each message of the engine.
    """

    def __init__(self, client: "EngineClient", request_id: int, request: GenerationRequest, notifier: Notifier) -> None:
        self.request_id, self.request, self.notifier = request_id, request, notifier
        self.choices = [ChoiceProgress() for _ in range(request.n)]
        self.was_sent = self.was_resumed = False
        self.has_output = False  # of the present engine
        self.has_prompt_logprobs = False
        self._client = client
        self._accepted: asyncio.Future[None] = client.loop.create_future()
        self._queued: list[ChoiceOutput] = []
        self._failure: Exception | None = None

    async def __aenter__(self) -> "EngineStream":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.abort()

    @property
    def is_finished(self) -> bool:
        """All choices have ended, or the request failed."""
        return self._failure is not None or all(choice.is_finished for choice in self.choices)

    @property
    def has_begun(self) -> bool:
        """Some engine has computed tokens of it."""
        return any(choice.token_ids for choice in self.choices)

    async def accepted(self) -> None:
        """Wait until the engine has queued the request. Raises RequestError, CapacityError or EngineError."""
        await asyncio.shield(self._accepted)

    def take(self) -> list[ChoiceOutput]:
        """All that is queued, perhaps nothing; raises EngineError when the request failed and nothing is left. A slow
        reader finds the outputs of several steps at once: what waits here is at most the request's own tokens."""
        queued = self._queued
        if queued:
            self._queued = []
        elif self._failure is not None:
            raise self._failure
        return queued

    async def outputs(self) -> list[ChoiceOutput]:
        """What ``take`` returns, as soon as that is something."""
        while not (outputs := self.take()):
            await self.notifier.wait()
        return outputs

    def finish_choice(self, choice: int, num_tokens: int) -> None:
        """A stop string ended the choice after ``num_tokens`` output tokens; its last output still comes."""
        if not self.choices[choice].is_finished:
            self.choices[choice].end = num_tokens
            self._client.send(Finish(self.request_id, choice, FinishReason.STOP, num_tokens))
            if not self._client.is_connected:
                self._client.settle(self)

    def abort(self) -> None:
        """Nobody wants the rest. Nothing after the end."""
        self._client.forget(self)

    # ---- for the client

    def accept(self) -> None:
        """The engine has queued it."""
        if not self._accepted.done():
            self._accepted.set_result(None)

    def push(self, output: Output, time_ns: int) -> None:
        """One output of the engine; whoever reads is told by the caller, once for all of a message."""
        token_ids = unpack_ids(output.token_ids)
        choice = self.choices[output.choice]
        choice.token_ids += token_ids
        finish, events = None, output.events
        if self.was_resumed:
            events = tuple(map(_as_resumed, events))
        else:
            choice.num_cached_tokens = output.num_cached_tokens
        if output.prompt_logprobs is not None:
            self.has_prompt_logprobs = True
        if output.finish is not None:
            finish, choice.is_finished = FinishReason(output.finish), True
            self.charge(output)
        self._queued.append(
            ChoiceOutput(
                output.choice,
                token_ids,
                output.logprobs,
                finish,
                output.stop_token_id,
                choice.num_cached_tokens,
                output.prompt_logprobs,
                events,
                time_ns,
            )
        )

    def charge(self, output: Output) -> None:
        """The engine has said what a choice has cost."""
        if self.request.bill is not None:
            self.request.bill.charge(output.device_ns, output.kv_block_ns)

    def end_what_was_over(self) -> None:
        """The engine died before it had answered: choices that a stop string ended are not continued."""
        for index, choice in enumerate(self.choices):
            if choice.end is None or choice.is_finished:
                continue
            choice.is_finished = True
            num_cached, now = choice.num_cached_tokens, time.monotonic_ns()
            self._queued.append(ChoiceOutput(index, [], None, FinishReason.STOP, None, num_cached, None, (), now))
        self.notifier.notify()

    def fail(self, error: Exception) -> None:
        """The request ends with an error, after what is queued."""
        self._failure = error
        if not self._accepted.done():
            self._accepted.set_exception(error)
            self._accepted.exception()  # nobody may be waiting for it any more
        self.notifier.notify()

    def as_add(self) -> Add:
        """The request as an engine must see it now: choices that have not ended, with what they have so far."""
        request = self.request
        choices = tuple(
            (index, pack_ids(choice.token_ids)) for index, choice in enumerate(self.choices) if not choice.is_finished
        )
        return Add(
            request_id=self.request_id,
            arrival_ns=request.arrival_ns,
            model=request.model,
            prompt_ids=pack_ids(request.prompt_ids),
            params=request.params,
            choices=choices,
            num_prompt_logprobs=-1 if self.has_prompt_logprobs else request.num_prompt_logprobs,
            grammar=request.grammar,
            cache_salt=request.cache_salt,
            priority=request.priority,
            tenant=request.tenant,
            weight=request.weight,
            deadline_ns=request.deadline_ns,
            is_resumed=self.was_sent,
            traceparent=request.traceparent,
            beam=request.beam,
        )


class EngineClient:
    """One engine at a time, and its successors. ``on_stats`` is told every ``Stats``, ``on_ready`` every ``Ready``.

    While an engine is replaced, requests wait: those that ran go on from the tokens they have, new ones begin.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, on_stats: Callable[[Stats], None], on_ready: Callable[[Ready], None]
    ) -> None:
        self.loop = loop
        self.num_resumed = 0  # requests that another engine had begun
        self.last_beat: Beat | None = None
        self._on_stats, self._on_ready = on_stats, on_ready
        self._connection: EngineConnection | None = None
        self._ready: Ready | None = None
        self._is_connected = False
        self._quarantine = Quarantine()
        self._resuming: set[int] = set()  # given to the present engine as it came, no output yet
        self._why_not_ready = (NOT_READY, "not_ready")  # message and code
        self._streams: dict[int, EngineStream] = {}
        self._left: dict[int, EngineStream] = {}  # aborted; the engine has not said yet what they have cost
        # Ids are unique among gateways: a random beginning, then a counter.
        self._ids = itertools.count(secrets.randbits(32) << 32)

    @property
    def ready(self) -> Ready:
        """What the engine said of itself. Raises EngineError (503) while there is none."""
        if self._ready is None:
            message, code = self._why_not_ready
            raise EngineError(message, code=code, status=503)
        return self._ready

    @property
    def is_ready(self) -> bool:
        """Requests are taken, though they may have to wait for an engine that comes in another's place."""
        return self._ready is not None

    @property
    def is_connected(self) -> bool:
        """The present engine has said that it serves."""
        return self._is_connected

    @property
    def num_in_flight(self) -> int:
        """Requests that have not ended."""
        return len(self._streams)

    def connect(self, connection: EngineConnection) -> None:
        """An engine was started, perhaps in another's place: what it sends comes here."""
        self._connection = connection
        self.last_beat = None
        self._why_not_ready = (NOT_READY, "not_ready")
        connection.start(self._receive)

    def lose(self, in_step: Mapping[int, bool], *, was_killed: bool) -> Verdict:
        """The engine has died with these requests in its step, and another one may come: requests wait for it.

        ``in_step``: whether each had been through a step before. ``was_killed``: by a signal that anybody may send. A
        request that must have been the reason fails.
        """
        if self._connection is not None:
            self._connection.close()
        self._connection, self._is_connected = None, False
        self._left.clear()
        for stream in list(self._streams.values()):
            self.settle(stream)
        streams = self._streams
        # A beam search has no output before its end, by which it could be cleared: once under way it is not suspected.
        suspects = [
            request_id
            for request_id, was_tested in in_step.items()
            if request_id in streams and not (was_tested and streams[request_id].request.beam is not None)
        ]
        verdict = self._quarantine.crash(
            suspects, lambda request_id: streams[request_id].has_output, was_killed=was_killed
        )
        self._resuming = set()
        if verdict.condemned is not None:
            text = "the engine died each time that this request ran"
            self._fail(verdict.condemned, EngineError(text, code="engine_killed"))
        return verdict

    def disconnect(self, error: EngineError) -> None:
        """The engine is gone for good: every request ends with ``error``, new ones are refused for the same reason.

        Told again, it does nothing.
        """
        if self._connection is None and self._ready is None:
            return
        if self._connection is not None:
            self._connection.close()
        self._connection = self._ready = None
        self._is_connected = False
        self._why_not_ready = (error.message, error.code)
        streams, self._streams = self._streams, {}
        self._left.clear()
        for stream in streams.values():
            stream.fail(error)

    def submit(self, request: GenerationRequest, notifier: Notifier | None = None) -> EngineStream:
        """Send a request; one who reads several gives them the same ``notifier``. Raises EngineError (503) while no
        engine is ready."""
        _ = self.ready
        stream = EngineStream(self, next(self._ids), request, notifier or Notifier())
        self._streams[stream.request_id] = stream
        if self._is_connected:
            self._begin(stream)
        return stream

    def forget(self, stream: EngineStream) -> None:
        """The stream's owner has left it: abort in the engine what has not ended."""
        if self._streams.pop(stream.request_id, None) is not None:
            if stream.request.bill is not None and self._is_connected and stream.was_sent:
                self._left[stream.request_id] = stream
            self.send(Abort(stream.request_id))
            self._clear(stream.request_id)

    def settle(self, stream: EngineStream) -> None:
        """There is no engine to answer that choices of it are over: they are."""
        stream.end_what_was_over()
        if stream.is_finished and self._streams.pop(stream.request_id, None) is not None:
            self._clear(stream.request_id)

    def drain(self) -> None:
        """Tell the engine to end when its last request is done."""
        self.send(Drain())

    def send(self, message: Add | Finish | Abort | Drain) -> None:
        """To the engine, if there is one: what is for a dead engine concerns nobody."""
        if self._connection is not None:
            self._connection.send(message)

    # ---- what comes

    def _receive(self, message: ToGateway) -> None:
        match message:
            case Outputs():
                self._push(message)
            case Accepted():
                if (stream := self._streams.get(message.request_id)) is not None:
                    stream.accept()
            case Refused():
                text = f"the server is busy: {message.reason}"
                self._fail(message.request_id, CapacityError(text, retry_after=message.retry_after_ms / 1000))
            case Failed():
                if message.choice >= 0:  # the request fails as a whole: its other choices are for nobody
                    self.send(Abort(message.request_id))
                stream = self._streams.get(message.request_id)
                self._fail(message.request_id, _as_error(message, None if stream is None else stream.request))
            case Beat():
                self.last_beat = message
            case Stats():
                self._on_stats(message)
            case Ready():
                self._take_over(message)

    def _push(self, message: Outputs) -> None:
        streams, time_ns = self._streams, message.time_ns
        notifiers: dict[Notifier, None] = {}  # in order
        try:
            for output in message.outputs:
                stream = streams.get(output.request_id)
                if stream is None:  # aborted here; the engine's answer to that
                    if output.finish is not None:
                        self._charge_left(output)
                    continue
                stream.push(output, time_ns)
                if not stream.has_output:
                    stream.has_output = True
                    self._clear(output.request_id)
                if output.finish is not None and stream.is_finished:
                    del streams[output.request_id]
                notifiers[stream.notifier] = None
        finally:
            # Only now: choices and prompts of one response are one event more each, but together one ``send``.
            for notifier in notifiers:
                notifier.notify()

    def _charge_left(self, output: Output) -> None:
        stream = self._left.get(output.request_id)
        if stream is not None:
            stream.charge(output)
            stream.choices[output.choice].is_finished = True
            if stream.is_finished:
                del self._left[output.request_id]

    def _fail(self, request_id: int, error: Exception) -> None:
        self._left.pop(request_id, None)
        stream = self._streams.pop(request_id, None)
        if stream is not None:
            stream.fail(error)
            self._clear(request_id)

    # ---- from one engine to the next

    def _take_over(self, ready: Ready) -> None:
        """An engine serves: it gets whatever has come while there was none, and what others before it have begun."""
        before, self._ready = self._ready, ready
        if before is not None and before.numerics_id != ready.numerics_id:
            text = "the engine that came in the place of one that died computes differently"
            for stream in [stream for stream in self._streams.values() if stream.has_begun]:
                self._fail(stream.request_id, EngineError(text, code="engine_changed"))
        self._is_connected = True
        held = self._quarantine.held
        waiting = [stream for request_id, stream in self._streams.items() if request_id not in held]
        self._resuming = {stream.request_id for stream in waiting if stream.has_begun}
        for stream in sorted(waiting, key=lambda stream: stream.request.arrival_ns):
            self._begin(stream)
        self._release()
        self._on_ready(ready)

    def _begin(self, stream: EngineStream) -> None:
        self.send(stream.as_add())
        self.num_resumed += stream.was_sent
        stream.has_output, stream.was_resumed, stream.was_sent = False, stream.was_sent, True

    def _clear(self, request_id: int) -> None:
        """It has had an output of the present engine, or needs none any more."""
        self._resuming.discard(request_id)
        if not self._quarantine.is_empty:
            self._quarantine.clear(request_id)
            self._release()

    def _release(self) -> None:
        """Suspects come back when all others are back: whoever is alone with them is known to be harmless."""
        if self._is_connected and not self._resuming:
            for request_id in self._quarantine.release():
                self._begin(self._streams[request_id])


_AS_RESUMED = {int(EventKind.ADMITTED): int(EventKind.RESUMED)}


def _as_resumed(event: Event) -> Event:
    kind, time_ns, value = event
    return (_AS_RESUMED.get(kind, kind), time_ns, value)


def _as_error(message: Failed, request: GenerationRequest | None) -> Exception:
    if message.code == INVALID_GRAMMAR and request is not None:
        param = request.grammar_param
        return RequestError(f"{param} cannot be honoured: {message.message}", param=param, code=message.code)
    if message.code in CLIENT_FAULTS:
        return RequestError(message.message, code=message.code)
    if message.code in UNAVAILABLE:
        return EngineError(message.message, code=message.code, status=503)
    return EngineError(message.message, code=message.code)
