"""One request on its way, for whoever reads its tokens: what is asked, what comes, how it fails.

Knows no HTTP and no text. One thread only, the event loop's.
"""

import asyncio
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol

import msgspec

from gateway.flight import Bill, ChoiceProgress, Flight
from gateway.notifier import Notifier
from ipc.codec import pack_ids, unpack_ids
from ipc.errors import CapacityError, EngineError, RequestError
from ipc.messages import Add, Event, Failed, FinishReason, Output, Refused, TokenLogprobs
from ipc.params import BeamParams, SamplingParams

INVALID_GRAMMAR = "invalid_grammar"
CLIENT_FAULTS = frozenset({"invalid", "impossible", "no_token_left", INVALID_GRAMMAR})
UNAVAILABLE = frozenset({"draining", "not_ready", "shutting_down", "out_of_memory"})


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """What is asked of an engine. ``arrival_ns``: monotonic, when the client's request came in. ``grammar_param``: the
    client's field that asks for ``grammar``. ``visit``: which of the desk's, where that is another process.
    ``client_id``: the exchange's X-Request-Id."""

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
    visit: int = 0
    client_id: str = ""

    def as_add(self, request_id: int) -> Add:
        """As an engine sees it the first time."""
        return Add(
            request_id=request_id,
            arrival_ns=self.arrival_ns,
            model=self.model,
            prompt_ids=pack_ids(self.prompt_ids),
            params=self.params,
            choices=tuple((index, b"") for index in range(self.n)),
            num_prompt_logprobs=self.num_prompt_logprobs,
            grammar=self.grammar,
            cache_salt=self.cache_salt,
            priority=self.priority,
            tenant=self.tenant,
            weight=self.weight,
            deadline_ns=self.deadline_ns,
            traceparent=self.traceparent,
            beam=self.beam,
            visit=self.visit,
            client_id=self.client_id,
        )


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


class Submitter(Protocol):
    """What a stream needs of the client that made it."""

    loop: asyncio.AbstractEventLoop

    def finish(self, stream: "EngineStream", choice: int, num_tokens: int) -> None: ...

    def forget(self, stream: "EngineStream") -> None: ...


class EngineStream:
    """One request on its way. Leaving the context aborts whatever has not ended.

    ``notifier`` is told when ``take`` has something new to return or to raise: once for each message of the engine.
    """

    def __init__(self, client: Submitter, request_id: int, request: GenerationRequest, notifier: Notifier) -> None:
        self.request, self.notifier = request, notifier
        self.flight = Flight(request.as_add(request_id), request.bill)
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
    def request_id(self) -> int:
        """The id on the wire."""
        return self.flight.request_id

    @property
    def choices(self) -> dict[int, ChoiceProgress]:
        """How far each is, by index."""
        return self.flight.choices

    @property
    def is_finished(self) -> bool:
        """All choices have ended, or the request failed."""
        return self.flight.is_finished

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
        self._client.finish(self, choice, num_tokens)

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
        output = self.flight.take(output)
        self._queued.append(
            ChoiceOutput(
                output.choice,
                unpack_ids(output.token_ids),
                output.logprobs,
                None if output.finish is None else FinishReason(output.finish),
                output.stop_token_id,
                output.num_cached_tokens,
                output.prompt_logprobs,
                output.events,
                time_ns,
            )
        )

    def fail(self, message: Failed | Refused) -> None:
        """The request ends with an error, after what is queued."""
        self._failure = error = _as_error(message, self.request)
        if not self._accepted.done():
            self._accepted.set_exception(error)
            self._accepted.exception()  # nobody may be waiting for it any more
        self.notifier.notify()


def _as_error(message: Failed | Refused, request: GenerationRequest) -> Exception:
    if isinstance(message, Refused):
        return CapacityError(f"the server is busy: {message.reason}", retry_after=message.retry_after_ms / 1000)
    if message.code == INVALID_GRAMMAR:
        param = request.grammar_param
        return RequestError(f"{param} cannot be honoured: {message.message}", param=param, code=message.code)
    if message.code in CLIENT_FAULTS:
        return RequestError(message.message, code=message.code)
    if message.code in UNAVAILABLE:
        return EngineError(message.message, code=message.code, status=503)
    return EngineError(message.message, code=message.code)
