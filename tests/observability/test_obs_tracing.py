"""Spans as an exporter receives them."""

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes as convention
from opentelemetry.semconv.attributes import error_attributes, server_attributes
from opentelemetry.trace import SpanKind, StatusCode, format_span_id, format_trace_id

from observability.clock import ClockPair
from observability.gen_ai import ATTRIBUTES, OWN_ATTRIBUTES, SCHEMA_URL, gen_ai_attributes
from observability.http_trace import HttpHead, HttpTrace
from observability.request_times import Phase, RequestTimes
from observability.request_trace import RequestTrace
from observability.tracing import Tracing

CLOCK = ClockPair(monotonic_ns=1_000_000, wall_ns=1_700_000_000_000_000_000)
TIMES = RequestTimes(1_000_000, 1_100_000, 1_400_000, 2_000_000, 5_000_000, 5_100_000)
TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Recorded:
    """Tracing into memory, with a clock that stands still."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.tracing = Tracing(SimpleSpanProcessor(self.exporter), service_version="1.2", clock=lambda: CLOCK)

    def spans(self) -> dict[str, ReadableSpan]:
        return {span.name: span for span in self.exporter.get_finished_spans()}

    def exchange(self, traceparent: str = "", tracestate: str = "") -> HttpTrace:
        return self.tracing.exchange(head(traceparent, tracestate))

    def request(self, traceparent: str = "", tracestate: str = "") -> RequestTrace:
        return self.exchange(traceparent, tracestate).request("chat", "m", TIMES.arrival_ns)


def head(traceparent: str = "", tracestate: str = "") -> HttpHead:
    return HttpHead("POST", "/v1/x", "http", "1.1", ("::1", 8000), "r1", traceparent, tracestate)


def wall(monotonic_ns: int) -> int:
    return monotonic_ns - 1_000_000 + 1_700_000_000_000_000_000


def test_a_request_is_one_span_with_its_phases_as_children() -> None:
    recorded = Recorded()
    exchange = recorded.exchange()
    trace = exchange.request("chat", "smollm2", TIMES.arrival_ns)
    assert trace.is_recording
    tokenizing = Phase("tokenize", 1_010_000, 1_050_000)
    values = {"finish_reasons": ["stop"], "num_prompt_tokens": 5, "num_generation_tokens": 9}
    trace.end(TIMES, values, tokenizing=tokenizing)
    exchange.end("/v1/x", 200)
    spans = recorded.spans()
    assert set(spans) == {"POST /v1/x", "chat smollm2", "tokenize", "queue", "prefill", "decode"}
    http, request = spans["POST /v1/x"], spans["chat smollm2"]
    assert (http.parent, http.kind, http.start_time) == (None, SpanKind.SERVER, CLOCK.wall_ns)
    assert (request.start_time, request.end_time) == (wall(1_000_000), wall(5_100_000))
    assert request.parent == http.context
    assert request.kind is SpanKind.INTERNAL
    assert request.status.status_code is StatusCode.UNSET
    assert dict(request.attributes or {}) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "octavo",
        "gen_ai.request.model": "smollm2",
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.usage.input_tokens": 5,
        "gen_ai.usage.output_tokens": 9,
    }
    assert (request.resource.attributes["service.name"], request.resource.attributes["service.version"]) == (
        "octavo",
        "1.2",
    )
    assert request.instrumentation_scope is not None
    assert request.instrumentation_scope.schema_url == SCHEMA_URL
    phases = {
        "tokenize": (1_010_000, 1_050_000),
        "queue": (1_100_000, 1_400_000),
        "prefill": (1_400_000, 2_000_000),
        "decode": (2_000_000, 5_000_000),
    }
    for name, (start, end) in phases.items():
        assert spans[name].parent == request.context
        assert (spans[name].start_time, spans[name].end_time) == (wall(start), wall(end))


def test_scheduler_events_stand_on_the_span_at_their_times_and_chunks_on_their_phase() -> None:
    recorded = Recorded()
    trace = recorded.request()
    trace.event("blocked", 1_200_000, {"reason": "kv_blocks"})
    trace.event("admitted", 1_400_000)
    trace.event("chunk", 1_400_000, {"tokens": 16})
    trace.event("chunk", 1_500_000, {"tokens": 8})
    trace.event("chunk", 3_000_000, {"tokens": 30})  # computed again after a preemption
    trace.end(TIMES, {})
    spans = recorded.spans()

    def events(name: str) -> list[tuple[str, int, dict[str, object]]]:
        return [(event.name, event.timestamp, dict(event.attributes or {})) for event in spans[name].events]

    assert events("chat m") == [
        ("blocked", wall(1_200_000), {"reason": "kv_blocks"}),
        ("admitted", wall(1_400_000), {}),
    ]
    assert events("prefill") == [("chunk", wall(1_400_000), {"tokens": 16}), ("chunk", wall(1_500_000), {"tokens": 8})]
    assert events("decode") == [("chunk", wall(3_000_000), {"tokens": 30})]


def test_an_abort_while_queued_leaves_an_error_span_and_its_wait() -> None:
    recorded = Recorded()
    trace = recorded.request()
    times = RequestTimes(1_000_000, queued_ns=1_100_000, end_ns=9_000_000)
    trace.end(
        times, {"finish_reasons": ["abort"]}, error_type="abort", error_message="the client closed the connection"
    )
    spans = recorded.spans()
    assert set(spans) == {"chat m", "queue"}
    assert spans["queue"].end_time == wall(9_000_000)
    assert spans["chat m"].status.status_code is StatusCode.ERROR
    assert spans["chat m"].status.description == "the client closed the connection"
    assert (spans["chat m"].attributes or {})["error.type"] == "abort"


def test_the_first_failure_of_an_exchange_counts() -> None:
    recorded = Recorded()
    exchange = recorded.exchange()
    exchange.fail("abort", "left")
    exchange.fail("other")
    exchange.end(None, 503)
    (span,) = recorded.spans().values()
    assert (span.name, span.status.description) == ("POST", "left")
    assert (span.attributes or {})["error.type"] == "abort"
    assert (span.attributes or {})["server.port"] == 8000


def test_the_clients_trace_is_continued() -> None:
    recorded = Recorded()
    exchange = recorded.exchange(f"00-{TRACE_ID}-{SPAN_ID}-01", "vendor=1")
    trace = exchange.request("chat", "m", 1_000_000)
    assert trace.trace_id == exchange.trace_id == TRACE_ID
    version, trace_id, span_id, flags = trace.traceparent.split("-")
    assert (version, trace_id, flags) == ("00", TRACE_ID, "01")
    trace.end(TIMES, {})
    exchange.end("/v1/x", 200)
    http, request = recorded.spans()["POST /v1/x"], recorded.spans()["chat m"]
    assert http.parent is not None
    assert request.context is not None
    assert format_trace_id(request.context.trace_id) == TRACE_ID
    assert format_span_id(http.parent.span_id) == SPAN_ID
    assert format_span_id(request.context.span_id) == span_id
    assert request.context.trace_state.get("vendor") == "1"


def test_a_trace_that_is_not_sampled_stays_so() -> None:
    recorded = Recorded()
    exchange = recorded.exchange(f"00-{TRACE_ID}-{SPAN_ID}-00")
    trace = exchange.request("chat", "m", 0)
    assert not trace.is_recording
    assert trace.trace_id == exchange.trace_id == TRACE_ID
    assert trace.traceparent.endswith("-00")
    trace.event("admitted", 1)
    trace.end(TIMES, {})
    exchange.fail("abort")
    exchange.end("/v1/x", 200)
    assert recorded.spans() == {}


@pytest.mark.parametrize(
    "traceparent",
    [
        "",
        "nonsense",
        f"00-{TRACE_ID}-{SPAN_ID}",
        f"00-{'0' * 32}-{SPAN_ID}-01",
        f"00-{TRACE_ID}-{'0' * 16}-01",
        f"ff-{TRACE_ID}-{SPAN_ID}-01",
        f"00-{TRACE_ID[:-1]}-{SPAN_ID}-01",
        f"00-{TRACE_ID.replace('a', 'g')}-{SPAN_ID}-01",
        f"00-{TRACE_ID}-{SPAN_ID}-01,00-{TRACE_ID}-{SPAN_ID}-01",
    ],
)
def test_a_malformed_header_counts_as_none(traceparent: str) -> None:
    recorded = Recorded()
    exchange = recorded.exchange(traceparent, "\x00=,,")
    assert exchange.trace_id != TRACE_ID
    exchange.end("/v1/x", 200)
    assert recorded.spans()["POST /v1/x"].parent is None


def test_off_gives_out_one_silent_trace() -> None:
    tracing = Tracing(None)
    assert not tracing.is_on
    exchange = tracing.exchange(head(f"00-{TRACE_ID}-{SPAN_ID}-01"))
    assert exchange is tracing.exchange(head())
    first = exchange.request("chat", "m", 0)
    assert first is exchange.request("chat", "m", 1)
    assert not first.is_recording
    first.event("admitted", 1)
    first.end(TIMES, {"temperature": 0.0})
    exchange.end("/v1/x", 200)
    assert (exchange.trace_id, first.trace_id, first.traceparent) == ("", "", "")
    tracing.shutdown()


def test_the_environment_may_name_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=prod")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "chatbot")
    recorded = Recorded()
    recorded.exchange().end(None, 200)
    found = recorded.spans()["POST"].resource.attributes
    assert (found["service.name"], found["deployment.environment.name"]) == ("chatbot", "prod")


def test_an_exporter_is_fed_in_batches_and_flushed_at_shutdown() -> None:
    exporter = InMemorySpanExporter()
    tracing = Tracing(exporter)
    tracing.exchange(head()).request("chat", "m", 0).end(TIMES, {})
    tracing.shutdown()
    assert {span.name for span in exporter.get_finished_spans()} == {"chat m", "queue", "prefill", "decode"}


class DeadExporter(SpanExporter):
    """An endpoint that is down."""

    def export(self, spans: object) -> SpanExportResult:
        return SpanExportResult.FAILURE


def test_a_dead_exporter_disturbs_no_request() -> None:
    tracing = Tracing(DeadExporter())
    for _ in range(10):
        tracing.exchange(head()).request("chat", "m", 0).end(TIMES, {})
    tracing.shutdown()


def test_the_table_has_the_conventions_names() -> None:
    names = {value for name, value in vars(convention).items() if name.startswith("GEN_AI_") and isinstance(value, str)}
    names |= {error_attributes.ERROR_TYPE, server_attributes.SERVER_ADDRESS, server_attributes.SERVER_PORT}
    assert set(ATTRIBUTES.values()) <= names
    deprecated = {convention.GEN_AI_USAGE_PROMPT_TOKENS, convention.GEN_AI_USAGE_COMPLETION_TOKENS}
    assert not deprecated & set(ATTRIBUTES.values())
    assert all(name.startswith("octavo.") for name in OWN_ATTRIBUTES.values())


def test_zero_is_a_value_and_none_is_not() -> None:
    values = {"temperature": 0.0, "seed": 0, "top_k": None, "n": 1, "stream": False}
    assert gen_ai_attributes(values) == {
        "gen_ai.request.temperature": 0.0,
        "gen_ai.request.seed": 0,
        "gen_ai.request.stream": False,
    }
    assert gen_ai_attributes({"n": 2}) == {"gen_ai.request.choice.count": 2}
    with pytest.raises(KeyError):
        gen_ai_attributes({"temperatur": 0.0})


def test_a_clock_pair_places_both_sides_of_its_moment() -> None:
    assert CLOCK.wall(1_000_000) == CLOCK.wall_ns
    assert CLOCK.wall(0) == CLOCK.wall_ns - 1_000_000
    assert CLOCK.wall(3_000_000) == CLOCK.wall_ns + 2_000_000
