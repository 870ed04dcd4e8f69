"""The span of one request to the model, with a child for each phase and the scheduler's events.

Made from the times at which things happened, when the request is over; must not know HTTP, nor the wire.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from opentelemetry.trace import Span, Status, StatusCode, Tracer, format_span_id, format_trace_id
from opentelemetry.trace import set_span_in_context as context_with

from observability.clock import ClockPair
from observability.gen_ai import AttributeValue, gen_ai_attributes
from observability.request_times import Phase, RequestTimes

CHUNK = "chunk"
"""The event that stands on the phase it belongs to, ``prefill`` or, after a preemption, ``decode``."""


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
        tokenizing: Phase | None = None,
        error_type: str | None = None,
        error_message: str = "",
        is_fault: bool = False,
    ) -> None:
        """The request is over; said exactly once. ``values`` carry the names of the tables in ``gen_ai``.

        ``error_type`` is a word for machines (``abort``, ``engine_error``): the span then has the error status.
        ``is_fault``: so has the exchange, whose own status may be out already.
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
        tokenizing: Phase | None = None,
        error_type: str | None = None,
        error_message: str = "",
        is_fault: bool = False,
    ) -> None:
        """Nothing."""


@dataclass(slots=True)
class SampledTrace:
    """One request's span; its children are made when it ends."""

    span: Span
    tracer: Tracer
    clock: ClockPair
    fail_exchange: Callable[[str, str], None]
    is_recording: bool = True
    _chunks: list[tuple[int, Mapping[str, AttributeValue] | None]] = field(default_factory=list)

    @property
    def trace_id(self) -> str:
        """32 hex digits."""
        return format_trace_id(self.span.get_span_context().trace_id)

    @property
    def traceparent(self) -> str:
        """The W3C header that makes somebody else's span a child of this one."""
        return traceparent(self.span)

    def event(self, name: str, time_ns: int, attributes: Mapping[str, AttributeValue] | None = None) -> None:
        """On the request's span, or a chunk on its phase's."""
        if name == CHUNK:
            self._chunks.append((time_ns, attributes))
        else:
            self.span.add_event(name, attributes, timestamp=self.clock.wall(time_ns))

    def end(
        self,
        times: RequestTimes,
        values: Mapping[str, AttributeValue | None],
        *,
        tokenizing: Phase | None = None,
        error_type: str | None = None,
        error_message: str = "",
        is_fault: bool = False,
    ) -> None:
        """The phases as children, the attributes, the status, and the end."""
        span, clock, context = self.span, self.clock, context_with(self.span)
        phases = times.phases() if tokenizing is None else (tokenizing, *times.phases())
        for phase in phases:
            child = self.tracer.start_span(phase.name, context, start_time=clock.wall(phase.start_ns))
            if self._chunks and phase.name in ("prefill", "decode"):
                self._place_chunks(child, phase, is_last=phase is phases[-1])
            child.end(clock.wall(phase.end_ns))
        span.set_attributes(gen_ai_attributes({**values, "error_type": error_type}))
        if error_type is not None:
            span.set_status(Status(StatusCode.ERROR, error_message or error_type))
            if is_fault:
                self.fail_exchange(error_type, error_message)
        assert times.end_ns is not None  # phases() has checked
        span.end(clock.wall(max(times.arrival_ns, times.end_ns)))

    def _place_chunks(self, child: Span, phase: Phase, *, is_last: bool) -> None:
        """Those of the phase: until its end, or all that are left."""
        chunks = self._chunks
        mine = chunks if is_last else [chunk for chunk in chunks if chunk[0] < phase.end_ns]
        for time_ns, attributes in mine:
            child.add_event(CHUNK, attributes, timestamp=self.clock.wall(time_ns))
        self._chunks = [] if is_last else [chunk for chunk in chunks if chunk[0] >= phase.end_ns]


def traceparent(span: Span) -> str:
    """The W3C header of a span."""
    context = span.get_span_context()
    return f"00-{format_trace_id(context.trace_id)}-{format_span_id(context.span_id)}-{context.trace_flags:02x}"
