"""The gateway's handle on an engine: submit a request at token level, get its outputs, abort it.

Keeps for each request everything an engine needs to continue it: the prompt and every token received (design 8).
Knows no HTTP and no text. One thread only, the event loop's.
"""

import asyncio
import itertools
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType

import msgspec

from gateway.engine_connection import EngineConnection
from gateway.notifier import Notifier
from ipc.codec import pack_ids, unpack_ids
from ipc.errors import CapacityError, EngineError, RequestError
from ipc.messages import (
    Abort,
    Accepted,
    Add,
    Beat,
    Drain,
    Event,
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
    """What is known of a choice: enough to continue it elsewhere."""

    token_ids: list[int] = field(default_factory=list)
    is_finished: bool = False


class EngineStream:
    """One request on its way. Leaving the context aborts whatever has not ended.

    ``notifier`` is told when ``take`` has something new to return or to raise: once for each message of the engine.
    """

    def __init__(self, client: "EngineClient", request_id: int, request: GenerationRequest, notifier: Notifier) -> None:
        self.request_id, self.request, self.notifier = request_id, request, notifier
        self.choices = [ChoiceProgress() for _ in range(request.n)]
        self.was_resumed = False
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
            self._client.send(Finish(self.request_id, choice, FinishReason.STOP, num_tokens))

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
        finish = None
        if output.finish is not None:
            finish, choice.is_finished = FinishReason(output.finish), True
        self._queued.append(
            ChoiceOutput(
                output.choice,
                token_ids,
                output.logprobs,
                finish,
                output.stop_token_id,
                output.num_cached_tokens,
                output.prompt_logprobs,
                output.events,
                time_ns,
            )
        )

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
            num_prompt_logprobs=request.num_prompt_logprobs,
            grammar=request.grammar,
            cache_salt=request.cache_salt,
            priority=request.priority,
            tenant=request.tenant,
            is_resumed=self.was_resumed,
            traceparent=request.traceparent,
            beam=request.beam,
        )


class EngineClient:
    """One engine at a time. ``on_stats`` is told every ``Stats`` of it, ``on_ready`` its ``Ready``."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, on_stats: Callable[[Stats], None], on_ready: Callable[[Ready], None]
    ) -> None:
        self.loop = loop
        self.last_beat: Beat | None = None
        self._on_stats, self._on_ready = on_stats, on_ready
        self._connection: EngineConnection | None = None
        self._ready: Ready | None = None
        self._why_not_ready = (NOT_READY, "not_ready")  # message and code
        self._streams: dict[int, EngineStream] = {}
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
        """Requests are taken."""
        return self._ready is not None

    @property
    def num_in_flight(self) -> int:
        """Requests that have not ended."""
        return len(self._streams)

    def connect(self, connection: EngineConnection) -> None:
        """An engine was started: what it sends comes here."""
        self._connection = connection
        self._why_not_ready = (NOT_READY, "not_ready")
        connection.start(self._receive)

    def disconnect(self, error: EngineError) -> None:
        """The engine is gone for good: every request ends with ``error``, new ones are refused for the same reason.

        Told again, it does nothing.
        """
        if self._connection is None:
            return
        self._connection.close()
        self._connection = self._ready = None
        self._why_not_ready = (error.message, error.code)
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.fail(error)

    def submit(self, request: GenerationRequest, notifier: Notifier | None = None) -> EngineStream:
        """Send a request; one who reads several gives them the same ``notifier``. Raises EngineError (503) while no
        engine is ready."""
        _ = self.ready
        stream = EngineStream(self, next(self._ids), request, notifier or Notifier())
        self._streams[stream.request_id] = stream
        self.send(stream.as_add())
        return stream

    def forget(self, stream: EngineStream) -> None:
        """The stream's owner has left it: abort in the engine what has not ended."""
        if self._streams.pop(stream.request_id, None) is not None:
            self.send(Abort(stream.request_id))

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
                self._ready = message
                self._on_ready(message)

    def _push(self, message: Outputs) -> None:
        streams, time_ns = self._streams, message.time_ns
        notifiers: dict[Notifier, None] = {}  # in order
        try:
            for output in message.outputs:
                stream = streams.get(output.request_id)
                if stream is None:
                    continue  # aborted here; the engine's answer to that
                stream.push(output, time_ns)
                if output.finish is not None and stream.is_finished:
                    del streams[output.request_id]
                notifiers[stream.notifier] = None
        finally:
            # Only now: choices and prompts of one response are one event more each, but together one ``send``.
            for notifier in notifiers:
                notifier.notify()

    def _fail(self, request_id: int, error: Exception) -> None:
        stream = self._streams.pop(request_id, None)
        if stream is not None:
            stream.fail(error)


def _as_error(message: Failed, request: GenerationRequest | None) -> Exception:
    if message.code == INVALID_GRAMMAR and request is not None:
        param = request.grammar_param
        return RequestError(f"{param} cannot be honoured: {message.message}", param=param, code=message.code)
    if message.code in CLIENT_FAULTS:
        return RequestError(message.message, code=message.code)
    if message.code in UNAVAILABLE:
        return EngineError(message.message, code=message.code, status=503)
    return EngineError(message.message, code=message.code)
