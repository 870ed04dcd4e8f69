"""Spans of requests, made in the gateway from the times at which things happened.

One span a request, from arrival to the end, with a child for each phase and the scheduler's events on it.
Takes any SpanExporter or SpanProcessor; must not know which, nor HTTP frameworks, nor the wire.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, format_span_id, format_trace_id
from opentelemetry.trace import set_span_in_context as context_with
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from observability.gen_ai import PROVIDER, SCHEMA_URL, AttributeValue, gen_ai_attributes
from observability.request_times import RequestTimes

MAX_EVENTS = 1024
"""Of one span; a request that is preempted more often than that keeps its latest events."""


class ClockPair(NamedTuple):
    """One moment on two clocks, in nanoseconds: places CLOCK_MONOTONIC times on the calendar."""

    monotonic_ns: int
    wall_ns: int

    @classmethod
    def now(cls) -> "ClockPair":
        """This moment."""
        return cls(time.monotonic_ns(), time.time_ns())

    def wall(self, monotonic_ns: int) -> int:
        """Nanoseconds since the epoch."""
        return self.wall_ns + monotonic_ns - self.monotonic_ns


class RequestTrace(Protocol):
    """What a request tells its trace. Test ``is_recording`` before work that serves the trace alone."""

    @property
    def is_recording(self) -> bool:
        """Whether anything will be kept."""

    @property
    def trace_id(self) -> str:
        """32 hex digits, for logs; empty if there is none."""

    @property
    def traceparent(self) -> str:
        """The W3C header for whoever works on this request; empty if there is none."""

    def event(self, name: str, time_ns: int, attributes: Mapping[str, AttributeValue] | None = None) -> None:
        """Something happened to the request at ``time_ns`` (CLOCK_MONOTONIC)."""

    def end(
        self,
        times: RequestTimes,
        values: Mapping[str, AttributeValue | None],
        *,
        error_type: str | None = None,
        error_message: str = "",
    ) -> None:
        """The request is over; said exactly once. ``values`` carry the names of ``gen_ai.ATTRIBUTES``.

        ``error_type`` is a word for machines (``abort``, ``engine_error``): the span then has the error status.
        """


@dataclass(frozen=True, slots=True)
class SilentTrace:
    """Keeps nothing: tracing is off, or the client's trace is not sampled."""

    is_recording: bool = False
    trace_id: str = ""
    traceparent: str = ""

    def event(self, name: str, time_ns: int, attributes: Mapping[str, AttributeValue] | None = None) -> None:
        """Nothing."""

    def end(
        self,
        times: RequestTimes,
        values: Mapping[str, AttributeValue | None],
        *,
        error_type: str | None = None,
        error_message: str = "",
    ) -> None:
        """Nothing."""


@dataclass(frozen=True, slots=True)
class SampledTrace:
    """One request's span; its children are made when it ends."""

    span: Span
    tracer: Tracer
    clock: ClockPair

    @property
    def is_recording(self) -> bool:
        """Yes."""
        return True

    @property
    def trace_id(self) -> str:
        """32 hex digits."""
        return format_trace_id(self.span.get_span_context().trace_id)

    @property
    def traceparent(self) -> str:
        """The W3C header that makes somebody else's span a child of this one."""
        return _traceparent(self.span)

    def event(self, name: str, time_ns: int, attributes: Mapping[str, AttributeValue] | None = None) -> None:
        """An event on the request's span."""
        self.span.add_event(name, attributes, timestamp=self.clock.wall(time_ns))

    def end(
        self,
        times: RequestTimes,
        values: Mapping[str, AttributeValue | None],
        *,
        error_type: str | None = None,
        error_message: str = "",
    ) -> None:
        """The phases as children, the attributes, the status, and the end."""
        span, clock, context = self.span, self.clock, context_with(self.span)
        for phase in times.phases():
            child = self.tracer.start_span(phase.name, context, start_time=clock.wall(phase.start_ns))
            child.end(clock.wall(phase.end_ns))
        span.set_attributes(gen_ai_attributes({**values, "error_type": error_type}))
        if error_type is not None:
            span.set_status(Status(StatusCode.ERROR, error_message or error_type))
        assert times.end_ns is not None  # phases() has checked
        span.end(clock.wall(max(times.arrival_ns, times.end_ns)))


class Tracing:
    """Starts the traces of requests. ``Tracing(None)`` is off: it gives out one silent trace."""

    def __init__(
        self,
        destination: SpanExporter | SpanProcessor | None,
        *,
        service_name: str = "octavo",
        service_version: str = "",
        clock: Callable[[], ClockPair] = ClockPair.now,
    ) -> None:
        """An exporter is fed in batches by a thread of its own, so that a slow or dead one delays nobody."""
        self._clock = clock
        self._silent = SilentTrace()
        self._provider: TracerProvider | None = None
        if destination is None:
            return
        resource = Resource.create({"service.name": service_name, "service.version": service_version})
        self._provider = TracerProvider(
            sampler=ParentBased(ALWAYS_ON),
            resource=resource,
            shutdown_on_exit=False,
            span_limits=SpanLimits(max_events=MAX_EVENTS),
        )
        processor = destination if isinstance(destination, SpanProcessor) else BatchSpanProcessor(destination)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("octavo", service_version, schema_url=SCHEMA_URL)
        self._propagator = TraceContextTextMapPropagator()

    def request(
        self, operation: str, model: str, arrival_ns: int, *, traceparent: str = "", tracestate: str = ""
    ) -> RequestTrace:
        """The trace of a request that arrived at ``arrival_ns`` (CLOCK_MONOTONIC).

        ``operation`` is ``chat`` or ``text_completion``. The headers are the client's: its trace is continued,
        its decision not to sample is kept, and a malformed header counts as none.
        """
        if self._provider is None:
            return self._silent
        clock = self._clock()
        span = self._tracer.start_span(
            f"{operation} {model}",
            self._parent(traceparent, tracestate),
            kind=SpanKind.SERVER,
            start_time=clock.wall(arrival_ns),
            attributes=gen_ai_attributes({"operation": operation, "provider": PROVIDER, "model": model}),
        )
        if not span.is_recording():
            return SilentTrace(
                trace_id=format_trace_id(span.get_span_context().trace_id), traceparent=_traceparent(span)
            )
        return SampledTrace(span, self._tracer, clock)

    def _parent(self, traceparent: str, tracestate: str) -> Context:
        headers = {"traceparent": traceparent, "tracestate": tracestate} if traceparent else {}
        return self._propagator.extract(headers, context=Context())

    def shutdown(self) -> None:
        """Hand over what is still held, and stop. Traces of requests that end later are lost."""
        if self._provider is not None:
            self._provider.shutdown()


def _traceparent(span: Span) -> str:
    context = span.get_span_context()
    return f"00-{format_trace_id(context.trace_id)}-{format_span_id(context.span_id)}-{context.trace_flags:02x}"
