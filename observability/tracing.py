"""Where traces begin: one for each HTTP exchange, made in the gateway, sent in batches by a thread.

Takes any SpanExporter or SpanProcessor; must not know which, nor HTTP frameworks, nor the wire.
"""

import threading
from collections.abc import Callable

from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from observability.clock import ClockPair
from observability.gen_ai import SCHEMA_URL
from observability.http_trace import HttpHead, HttpTrace, SilentExchange, start_exchange

MAX_EVENTS = 1024
"""Of one span; a request that is preempted more often than that keeps its latest events."""

SHUTDOWN_SECONDS = 2.0
"""In which what is still held is handed over when the server ends."""


class Tracing:
    """Starts the traces of exchanges. ``Tracing(None)`` is off: it gives out one silent trace."""

    def __init__(
        self,
        destination: SpanExporter | SpanProcessor | None,
        *,
        service_name: str = "octavo",
        service_version: str = "",
        clock: Callable[[], ClockPair] = ClockPair.now,
    ) -> None:
        """An exporter is fed in batches by a thread of its own, so that a slow or dead one delays nobody.

        Which traces are kept is the client's decision where it made one, else the sampler's that OTEL_TRACES_SAMPLER
        names, all by default.
        """
        self._clock = clock
        self._silent = SilentExchange()
        self._provider: TracerProvider | None = None
        self._destination = destination
        if destination is None:
            return
        self._provider = TracerProvider(
            resource=make_resource(service_name, service_version),
            shutdown_on_exit=False,
            span_limits=SpanLimits(max_events=MAX_EVENTS),
        )
        processor = destination if isinstance(destination, SpanProcessor) else BatchSpanProcessor(destination)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("octavo", service_version, schema_url=SCHEMA_URL)
        self._propagator = TraceContextTextMapPropagator()

    @property
    def is_on(self) -> bool:
        """Ask before work that serves traces alone."""
        return self._provider is not None

    def exchange(self, head: HttpHead) -> HttpTrace:
        """The trace of an exchange that begins now. The client's trace is continued, its decision not to sample is
        kept, and a malformed header counts as none."""
        if self._provider is None:
            return self._silent
        headers = {"traceparent": head.traceparent, "tracestate": head.tracestate} if head.traceparent else {}
        parent = self._propagator.extract(headers, context=Context())
        return start_exchange(self._tracer, self._clock(), head, parent)

    def shutdown(self) -> None:
        """Hand over what is still held, in a bounded time, and stop. Traces that end later are lost."""
        if self._provider is not None and self._destination is not None:
            shut_down(self._provider.shutdown, self._destination.shutdown)


def make_resource(service_name: str, service_version: str) -> Resource:
    """Who sends; OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES add to it or say otherwise."""
    own = Resource({"service.name": service_name, "service.version": service_version})
    named = Resource.create()
    # What nobody has named is called unknown_service.
    if str(named.attributes.get("service.name", "")).startswith("unknown_service"):
        return named.merge(own)
    return own.merge(named)


def shut_down(hand_over: Callable[[], object], give_up: Callable[[], object]) -> None:
    """``hand_over()``, but not longer than a server may take to end; then ``give_up()``, which ends what is being
    tried: a collector that does not answer is left."""
    thread = threading.Thread(target=hand_over, name="otlp-shutdown", daemon=True)
    thread.start()
    thread.join(SHUTDOWN_SECONDS)
    if thread.is_alive():
        give_up()
