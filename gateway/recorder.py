"""From the times of one request's events to metrics and its trace: the one place where they are computed.

Knows nothing of HTTP or text.
"""

import time
from collections.abc import Sequence
from typing import Protocol

from gateway.engine_client import ChoiceOutput, GenerationRequest
from ipc.messages import EventKind, WaitReason
from observability.gen_ai import AttributeValue
from observability.request_times import RequestTimes
from observability.tracing import RequestTrace, SilentTrace


class RequestMetrics(Protocol):
    """What is told about requests (``observability.metrics.Metrics`` does it)."""

    def observe_first_token(self, seconds: float) -> None: ...

    def observe_inter_token(self, seconds: float) -> None: ...

    def observe_request_end(
        self, finished_reason: str, times: RequestTimes, *, num_prompt_tokens: int, num_generation_tokens: int
    ) -> None: ...


class RequestRecorder:
    """Watches one request (one prompt, all its choices) and reports it once, however it ends.

    Phases are measured with the engine's own times; the first token counts when the gateway has it.
    """

    __slots__ = (
        "_first_token_seconds",
        "_last_ns",
        "_metrics",
        "_num_cached",
        "_observe_inter_token",
        "_request",
        "_times",
        "_trace",
        "num_tokens",
    )

    def __init__(self, metrics: RequestMetrics, request: GenerationRequest, trace: RequestTrace | None = None) -> None:
        self._metrics = metrics
        self._observe_inter_token = metrics.observe_inter_token
        self._request = request
        self._trace = trace or SilentTrace()
        self._times = RequestTimes(arrival_ns=request.arrival_ns)
        self._last_ns: dict[int, int] = {}
        self._first_token_seconds: float | None = None
        self._num_cached = 0
        self.num_tokens = 0

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

    def _observe_first_token(self, output: ChoiceOutput) -> None:
        times = self._times
        times.first_token_ns = output.time_ns
        self._num_cached = output.num_cached_tokens
        self._first_token_seconds = max(0, time.monotonic_ns() - times.arrival_ns) * 1e-9
        self._metrics.observe_first_token(self._first_token_seconds)

    def _observe_events(self, output: ChoiceOutput) -> None:
        times, trace = self._times, self._trace
        for kind, time_ns, value in output.events:
            if kind == EventKind.QUEUED and times.queued_ns is None:
                times.queued_ns = time_ns
            elif kind == EventKind.ADMITTED and times.admitted_ns is None:
                times.admitted_ns = time_ns
            if trace.is_recording:
                shown = WaitReason(value).name.lower() if kind == EventKind.BLOCKED else value
                trace.event(EventKind(kind).name.lower(), time_ns, {"choice": output.choice, "value": shown})

    def end(self, reason: str, finish_reasons: Sequence[str] = (), error: Exception | None = None) -> None:
        """The request is over: ``stop``, ``length``, ``abort`` or ``error``. Only the first call counts."""
        times = self._times
        if times.end_ns is not None:
            return
        times.end_ns = time.monotonic_ns()
        self._metrics.observe_request_end(
            reason,
            times,
            num_prompt_tokens=len(self._request.prompt_ids),
            num_generation_tokens=self.num_tokens,
        )
        self._trace.end(
            times,
            self._values(finish_reasons) if self._trace.is_recording else {},
            error_type=None if reason in ("stop", "length") else getattr(error, "code", None) or reason,
            error_message="" if error is None else str(error),
        )

    def refuse(self, error: Exception) -> None:
        """The engine did not take the request: it leaves a trace, but is no request that ended."""
        self._times.end_ns = time.monotonic_ns()
        self._trace.end(self._times, {}, error_type=getattr(error, "code", None) or "refused", error_message=str(error))

    def _values(self, finish_reasons: Sequence[str]) -> dict[str, AttributeValue | None]:
        request, params = self._request, self._request.params
        return {
            "n": request.n,
            "seed": params.seed,
            "max_tokens": params.max_tokens,
            "temperature": params.temperature,
            "top_p": params.top_p,
            "top_k": params.top_k or None,
            "frequency_penalty": params.frequency_penalty,
            "presence_penalty": params.presence_penalty,
            "finish_reasons": finish_reasons or None,
            "time_to_first_token": self._first_token_seconds,
            "num_prompt_tokens": len(request.prompt_ids),
            "num_cached_tokens": self._num_cached,
            "num_generation_tokens": self.num_tokens,
        }
