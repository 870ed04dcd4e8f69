"""From the times of one request's events to metrics, its trace and log lines: the one place where they are computed.

Knows nothing of HTTP or text.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from gateway.engine_stream import ChoiceOutput, GenerationRequest
from gateway.traced_events import as_int64, shown_id, traced_event
from ipc.errors import EngineError
from ipc.messages import EventKind, WaitReason
from observability.gen_ai import AttributeValue
from observability.request_log import RequestLog
from observability.request_summary import RequestSummary
from observability.request_times import POLICY, Phase, RequestTimes, Stopwatch
from observability.request_trace import RequestTrace, SilentTrace

GOOD_REASONS = ("stop", "length")
DEADLINE_EXCEEDED = "deadline_exceeded"  # as in the answer that says so
_MESSAGES = {"abort": "the client closed the connection", "deadline": "the deadline passed, or could not be met"}


class RequestMetrics(Protocol):
    """What is told about requests (``observability.metrics.Metrics`` does it)."""

    def observe_first_token(self, seconds: float) -> None: ...

    def observe_inter_token(self, seconds: float) -> None: ...

    def observe_request_end(self, request: RequestSummary) -> None: ...


class RequestObserver(Protocol):
    """Who else is told of each request that is over (``observability.gen_ai_metrics.GenAiMetrics``)."""

    def observe(self, request: RequestSummary) -> None: ...


class CapturedContent(Protocol):
    """The text of a request, for its trace; made only where that is wanted."""

    def values(
        self, texts: Sequence[str], finish_reasons: Sequence[str | None]
    ) -> dict[str, AttributeValue | None]: ...


@dataclass(frozen=True, slots=True)
class RequestFacts:
    """What a request is beside what the engine is asked. ``model``: as the client calls it; ``server``: the address and
    port that it came to; ``tokenizing``: of all prompts of its body."""

    operation: str = ""
    model: str = ""
    response_id: str | None = None
    is_stream: bool = False
    output_type: str | None = None
    stop: tuple[str, ...] = ()
    tenant: str = ""
    server: tuple[str, int | None] | None = None
    tokenizing: Stopwatch | None = None


@dataclass(frozen=True, slots=True)
class Listeners:
    """Who is told beside the metrics; None: nobody."""

    trace: RequestTrace = SilentTrace()
    log: RequestLog | None = None
    observer: RequestObserver | None = None
    content: CapturedContent | None = None


class RequestRecorder:
    """Watches one request (one prompt, all its choices) and reports it once, however it ends.

    Phases are measured with the engine's own times; the first token counts when the gateway has it.
    """

    __slots__ = (
        "_accepted_ns",
        "_facts",
        "_first_token_seconds",
        "_last_ns",
        "_listeners",
        "_metrics",
        "_num_cached",
        "_num_preemptions",
        "_num_tokens_of",
        "_observe_inter_token",
        "_request",
        "_times",
        "_trace",
        "_waiting_choice",
        "num_tokens",
        "request_id",
        "texts",
    )

    def __init__(
        self,
        metrics: RequestMetrics,
        request: GenerationRequest,
        facts: RequestFacts | None = None,
        listeners: Listeners | None = None,
    ) -> None:
        self._metrics = metrics
        self._observe_inter_token = metrics.observe_inter_token
        self._request, self._facts = request, facts or RequestFacts()
        self._listeners = listeners or Listeners()
        self._trace = self._listeners.trace
        self._times = RequestTimes(arrival_ns=request.arrival_ns)
        self._last_ns: dict[int, int] = {}
        self._num_tokens_of: dict[int, int] = {}
        self._first_token_seconds: float | None = None
        self._num_cached = self._num_preemptions = 0
        self._waiting_choice: int | None = None
        self._accepted_ns: int | None = None
        self.num_tokens = 0
        self.request_id: int | None = None  # the engine's
        self.texts: Callable[[], Sequence[str]] | None = None  # of the choices, for whoever captures content

    @property
    def captures_content(self) -> bool:
        """``texts`` will be asked for."""
        return self._listeners.content is not None

    def accepted(self) -> None:
        """The engine has it in its queue. Since when, it says with the first output, if there is one."""
        self._accepted_ns = time.monotonic_ns()
        if (log := self._listeners.log) is not None:
            request = self._request
            log.accepted(
                num_prompt_tokens=len(request.prompt_ids),
                n=request.n,
                max_tokens=request.params.max_tokens,
                is_stream=self._facts.is_stream,
            )

    def observe(self, outputs: Sequence[ChoiceOutput]) -> None:
        """What was taken at once. Called for every token: keep it short."""
        times, last_ns = self._times, self._last_ns
        for output in outputs:
            if output.events:
                self._observe_events(output)
            num_tokens, choice, time_ns = len(output.token_ids), output.choice, output.time_ns
            if not num_tokens:
                continue
            self.num_tokens += num_tokens
            if choice in last_ns:
                self._observe_inter_token(max(0, time_ns - last_ns[choice]) * 1e-9)
            elif times.first_token_ns is None:
                self._observe_first_token(output)
            last_ns[choice] = times.last_token_ns = time_ns
            self._num_tokens_of[choice] = self._num_tokens_of.get(choice, 0) + num_tokens

    def _observe_first_token(self, output: ChoiceOutput) -> None:
        times = self._times
        times.first_token_ns = output.time_ns
        self._num_cached = output.num_cached_tokens
        self._first_token_seconds = max(0, time.monotonic_ns() - times.arrival_ns) * 1e-9
        self._metrics.observe_first_token(self._first_token_seconds)

    def _observe_events(self, output: ChoiceOutput) -> None:
        trace = self._trace
        for kind, time_ns, value in output.events:
            self._observe_times(kind, time_ns, value, output.choice)
            if trace.is_recording and (event := traced_event(kind, value)) is not None:
                name, attributes = event
                trace.event(
                    name, time_ns, attributes if self._request.n == 1 else {**attributes, "choice": output.choice}
                )

    def _observe_times(self, kind: int, time_ns: int, value: int, choice: int) -> None:
        """The wait is that of the choice that computes the prompt, which is heard of first: the others wait for it."""
        times = self._times
        if self._waiting_choice is None:
            self._waiting_choice = choice
        is_waiting_choice = choice == self._waiting_choice
        if kind in (EventKind.PREEMPTED, EventKind.PREEMPTED_BY_SWAP):
            self._num_preemptions += 1
        elif not is_waiting_choice:
            return
        elif kind in (EventKind.QUEUED, EventKind.RESTARTED):
            times.queue(time_ns)
        elif kind == EventKind.BLOCKED:
            times.wait(time_ns, WaitReason(value).name.lower())
        elif kind == EventKind.GRAMMAR_READY:
            times.wait(time_ns, POLICY)
        elif kind in (EventKind.ADMITTED, EventKind.RESUMED):
            times.admit(time_ns)  # resumed: the engine that admitted it has died before it could say so

    def end(self, reason: str, finish_reasons: Sequence[str | None] = (), error: Exception | None = None) -> None:
        """The request is over: stop, length, deadline, abort or error. Only the first call counts."""
        times = self._times
        if times.end_ns is not None:
            return
        times.end_ns = time.monotonic_ns()
        if self._accepted_ns is not None:
            times.queue_unseen(self._accepted_ns)
        has_missed_deadline = reason == "deadline" or "deadline" in finish_reasons
        summary = self._summary(reason, error, has_missed_deadline=has_missed_deadline)
        listeners, trace = self._listeners, self._trace
        self._metrics.observe_request_end(summary)
        if listeners.observer is not None:
            listeners.observer.observe(summary)
        if trace.is_recording:
            values = self._values(finish_reasons)
            if listeners.content is not None and self.texts is not None:
                values |= listeners.content.values(self.texts(), finish_reasons)
            message = _MESSAGES.get(reason, "") if error is None else str(error)
            self._end_trace(values, summary.error_type, message, is_fault=isinstance(error, EngineError))
        if listeners.log is not None:
            listeners.log.ended(summary)

    def refuse(self, error: Exception) -> None:
        """The engine did not take the request: it leaves a trace, but is no request that ended."""
        times = self._times
        times.end_ns = time.monotonic_ns()
        error_type = getattr(error, "code", None) or "refused"
        if self._trace.is_recording:
            self._end_trace(self._values(()), error_type, str(error))
        if self._listeners.log is not None:
            self._listeners.log.refused(error_type, times.seconds)

    def _end_trace(
        self, values: dict[str, AttributeValue | None], error_type: str | None, message: str, *, is_fault: bool = False
    ) -> None:
        watch = self._facts.tokenizing
        tokenizing = None if watch is None else Phase("tokenize", watch.start_ns, watch.end_ns)
        self._trace.end(
            self._times,
            values,
            tokenizing=tokenizing,
            error_type=error_type,
            error_message=message,
            is_fault=is_fault,
        )

    def _summary(self, reason: str, error: Exception | None, *, has_missed_deadline: bool) -> RequestSummary:
        request, facts = self._request, self._facts
        error_type = None
        if has_missed_deadline:
            error_type = DEADLINE_EXCEEDED
        elif reason not in GOOD_REASONS:
            error_type = getattr(error, "code", None) or reason
        return RequestSummary(
            finished_reason=reason,
            times=self._times,
            num_prompt_tokens=len(request.prompt_ids),
            num_generation_tokens=self.num_tokens,
            num_cached_tokens=self._num_cached,
            longest_output=max(self._num_tokens_of.values(), default=0),
            num_preemptions=self._num_preemptions,
            n=request.n,
            max_tokens=request.params.max_tokens,
            first_token_seconds=self._first_token_seconds,
            has_missed_deadline=has_missed_deadline,
            operation=facts.operation,
            model=facts.model,
            response_model=request.model,
            server=facts.server,
            error_type=error_type,
        )

    def _values(self, finish_reasons: Sequence[str | None]) -> dict[str, AttributeValue | None]:
        request, params, facts = self._request, self._request.params, self._facts
        known = [reason for reason in finish_reasons if reason is not None]
        address, port = facts.server or (None, None)
        has_tokens = self._times.first_token_ns is not None
        return {
            "n": request.n,
            "stream": facts.is_stream,
            "output_type": facts.output_type,
            "seed": as_int64(params.seed),
            "max_tokens": params.max_tokens,
            "temperature": params.temperature,
            "top_p": params.top_p,
            "top_k": params.top_k or None,
            "frequency_penalty": params.frequency_penalty,
            "presence_penalty": params.presence_penalty,
            "stop": facts.stop or None,
            "response_id": facts.response_id,
            "response_model": request.model,
            "finish_reasons": known or None,
            "time_to_first_token": self._first_token_seconds,
            "num_prompt_tokens": len(request.prompt_ids),
            "num_cached_tokens": self._num_cached if has_tokens else None,
            "num_generation_tokens": self.num_tokens,
            "server_address": address,
            "server_port": port,
            "engine_request_id": None if self.request_id is None else shown_id(self.request_id),
            "tenant": facts.tenant or None,
        }
