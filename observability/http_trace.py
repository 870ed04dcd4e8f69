"""The span of one HTTP exchange, and the spans of requests to the model below it.

Names are those of OpenTelemetry's HTTP conventions (stable, v1.41.1). Must not know HTTP frameworks.
"""

from dataclasses import dataclass
from typing import Final, Protocol

from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, format_trace_id
from opentelemetry.trace import set_span_in_context as context_with

from observability.clock import ClockPair
from observability.gen_ai import PROVIDER, AttributeValue, gen_ai_attributes
from observability.request_trace import RequestTrace, SampledTrace, SilentTrace, traceparent

METHODS: Final = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT"))
"""Others are a client's invention: the convention calls them ``_OTHER``, and their spans HTTP."""


@dataclass(frozen=True, slots=True)
class HttpHead:
    """What is known of an exchange when it begins. ``traceparent`` and ``tracestate`` are the client's headers."""

    method: str
    path: str
    scheme: str
    version: str
    server: tuple[str, int | None] | None
    request_id: str
    traceparent: str = ""
    tracestate: str = ""

    def attributes(self) -> dict[str, AttributeValue]:
        """By the convention's names; they are there when the sampler decides."""
        attributes: dict[str, AttributeValue] = {
            "http.request.method": self.method if self.method in METHODS else "_OTHER",
            "url.path": self.path,
            "url.scheme": self.scheme,
            "network.protocol.version": self.version,
            "http.response.header.x-request-id": [self.request_id],
        }
        if self.server is not None:
            attributes["server.address"] = self.server[0]
            if self.server[1] is not None:
                attributes["server.port"] = self.server[1]
        return attributes


class HttpTrace(Protocol):
    """What an exchange tells its trace, and where the requests below it begin theirs."""

    @property
    def trace_id(self) -> str:
        """32 hex digits, for logs; empty if there is none."""

    def request(self, operation: str, model: str, arrival_ns: int) -> RequestTrace:
        """The trace of a request to the model. ``operation`` is ``chat`` or ``text_completion``, ``arrival_ns``
        CLOCK_MONOTONIC."""

    def fail(self, error_type: str, message: str = "") -> None:
        """It went wrong in a way that its status does not say: the client has left (``abort``), or the answer broke off
        after its headers. The first one counts."""

    def end(self, route: str | None, status: int | None) -> None:
        """It is over; said exactly once. ``route``: the template, None if there is none; ``status``: None if none was
        sent."""


@dataclass(frozen=True, slots=True)
class SilentExchange:
    """Keeps nothing: tracing is off, or the trace is not sampled."""

    below: SilentTrace = SilentTrace()

    @property
    def trace_id(self) -> str:
        """Of the client's trace, if it has one."""
        return self.below.trace_id

    def request(self, operation: str, model: str, arrival_ns: int) -> RequestTrace:
        """Keeps nothing, either."""
        return self.below

    def fail(self, error_type: str, message: str = "") -> None:
        """Nothing."""

    def end(self, route: str | None, status: int | None) -> None:
        """Nothing."""


@dataclass(slots=True)
class SampledExchange:
    """One exchange's span. ``clock``: places all times below it."""

    span: Span
    tracer: Tracer
    clock: ClockPair
    method: str
    failure: tuple[str, str] | None = None

    @property
    def trace_id(self) -> str:
        """32 hex digits."""
        return format_trace_id(self.span.get_span_context().trace_id)

    def request(self, operation: str, model: str, arrival_ns: int) -> RequestTrace:
        """See ``HttpTrace``. The model runs on this server, so the span is an internal one."""
        span = self.tracer.start_span(
            f"{operation} {model}",
            context_with(self.span),
            kind=SpanKind.INTERNAL,
            start_time=self.clock.wall(arrival_ns),
            attributes=gen_ai_attributes({"operation": operation, "provider": PROVIDER, "model": model}),
        )
        if not span.is_recording():
            return silent(span)
        return SampledTrace(span, self.tracer, self.clock, self.fail)

    def fail(self, error_type: str, message: str = "") -> None:
        """See ``HttpTrace``."""
        if self.failure is None:
            self.failure = (error_type, message)

    def end(self, route: str | None, status: int | None) -> None:
        """See ``HttpTrace``. A status of 4xx is no error of the server."""
        attributes: dict[str, AttributeValue] = {}
        if route is not None:
            self.span.update_name(f"{self.method} {route}")
            attributes["http.route"] = route
        if status is not None:
            attributes["http.response.status_code"] = status
        if status is not None and status >= 500:
            self.fail(str(status))
        if self.failure is not None:
            attributes["error.type"], message = self.failure
            self.span.set_status(Status(StatusCode.ERROR, message or None))
        self.span.set_attributes(attributes)
        self.span.end()


def start_exchange(tracer: Tracer, clock: ClockPair, head: HttpHead, parent: Context) -> HttpTrace:
    """The trace of an exchange that begins at ``clock``'s moment; ``parent``: the client's."""
    method = head.method if head.method in METHODS else "HTTP"
    span = tracer.start_span(
        method, parent, kind=SpanKind.SERVER, start_time=clock.wall_ns, attributes=head.attributes()
    )
    if not span.is_recording():
        return SilentExchange(silent(span))
    return SampledExchange(span, tracer, clock, method)


def silent(span: Span) -> SilentTrace:
    """Of a trace that is not sampled: the decision goes on to whoever comes next."""
    return SilentTrace(trace_id=format_trace_id(span.get_span_context().trace_id), traceparent=traceparent(span))
