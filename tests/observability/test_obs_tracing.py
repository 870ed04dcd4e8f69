"""Spans as an exporter receives them."""

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes as convention
from opentelemetry.semconv.attributes import error_attributes, server_attributes
from opentelemetry.trace import SpanKind, StatusCode, format_span_id, format_trace_id

from observability.gen_ai import ATTRIBUTES, SCHEMA_URL, gen_ai_attributes
from observability.request_times import RequestTimes
from observability.tracing import ClockPair, Tracing

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


def wall(monotonic_ns: int) -> int:
    return monotonic_ns - 1_000_000 + 1_700_000_000_000_000_000


def test_a_request_is_one_span_with_its_phases_as_children() -> None:
    recorded = Recorded()
    trace = recorded.tracing.request("chat", "smollm2", TIMES.arrival_ns)
    assert trace.is_recording
    trace.end(TIMES, {"finish_reasons": ["stop"], "num_prompt_tokens": 5, "num_generation_tokens": 9})
    spans = recorded.spans()
    assert set(spans) == {"chat smollm2", "queue", "prefill", "decode"}
    request = spans["chat smollm2"]
    assert (request.start_time, request.end_time) == (wall(1_000_000), wall(5_100_000))
    assert request.parent is None
    assert request.kind is SpanKind.SERVER
    assert request.status.status_code is StatusCode.UNSET
    assert dict(request.attributes or {}) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "octavo",
        "gen_ai.request.model": "smollm2",
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.usage.input_tokens": 5,
        "gen_ai.usage.output_tokens": 9,
    }
    assert request.resource.attributes["service.name"] == "octavo"
    assert request.instrumentation_scope is not None
    assert request.instrumentation_scope.schema_url == SCHEMA_URL
    phases = {"queue": (1_100_000, 1_400_000), "prefill": (1_400_000, 2_000_000), "decode": (2_000_000, 5_000_000)}
    for name, (start, end) in phases.items():
        assert spans[name].parent == request.context
        assert (spans[name].start_time, spans[name].end_time) == (wall(start), wall(end))


def test_scheduler_events_stand_on_the_span_at_their_times() -> None:
    recorded = Recorded()
    trace = recorded.tracing.request("text_completion", "m", TIMES.arrival_ns)
    trace.event("blocked", 1_200_000, {"reason": "kv_blocks"})
    trace.event("admitted", 1_400_000)
    trace.end(TIMES, {})
    events = recorded.spans()["text_completion m"].events
    assert [(event.name, event.timestamp, dict(event.attributes or {})) for event in events] == [
        ("blocked", wall(1_200_000), {"reason": "kv_blocks"}),
        ("admitted", wall(1_400_000), {}),
    ]


def test_an_abort_while_queued_leaves_an_error_span_and_its_wait() -> None:
    recorded = Recorded()
    trace = recorded.tracing.request("chat", "m", 1_000_000)
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


def test_the_clients_trace_is_continued() -> None:
    recorded = Recorded()
    parent = f"00-{TRACE_ID}-{SPAN_ID}-01"
    trace = recorded.tracing.request("chat", "m", 1_000_000, traceparent=parent, tracestate="vendor=1")
    assert trace.trace_id == TRACE_ID
    version, trace_id, span_id, flags = trace.traceparent.split("-")
    assert (version, trace_id, flags) == ("00", TRACE_ID, "01")
    trace.end(TIMES, {})
    request = recorded.spans()["chat m"]
    assert request.parent is not None
    assert request.context is not None
    assert format_trace_id(request.context.trace_id) == TRACE_ID
    assert format_span_id(request.parent.span_id) == SPAN_ID
    assert format_span_id(request.context.span_id) == span_id
    assert request.context.trace_state.get("vendor") == "1"


def test_a_trace_that_is_not_sampled_stays_so() -> None:
    recorded = Recorded()
    trace = recorded.tracing.request("chat", "m", 0, traceparent=f"00-{TRACE_ID}-{SPAN_ID}-00")
    assert not trace.is_recording
    assert trace.trace_id == TRACE_ID
    assert trace.traceparent.endswith("-00")
    trace.event("admitted", 1)
    trace.end(TIMES, {})
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
    ],
)
def test_a_malformed_header_counts_as_none(traceparent: str) -> None:
    recorded = Recorded()
    trace = recorded.tracing.request("chat", "m", 1_000_000, traceparent=traceparent, tracestate="\x00=,,")
    assert trace.is_recording
    assert trace.trace_id != TRACE_ID
    trace.end(TIMES, {})
    assert recorded.spans()["chat m"].parent is None


def test_off_gives_out_one_silent_trace() -> None:
    tracing = Tracing(None)
    first = tracing.request("chat", "m", 0, traceparent=f"00-{TRACE_ID}-{SPAN_ID}-01")
    assert first is tracing.request("chat", "m", 1)
    assert not first.is_recording
    first.event("admitted", 1)
    first.end(TIMES, {"temperature": 0.0})
    assert (first.trace_id, first.traceparent) == ("", "")
    tracing.shutdown()


def test_an_exporter_is_fed_in_batches_and_flushed_at_shutdown() -> None:
    exporter = InMemorySpanExporter()
    tracing = Tracing(exporter)
    tracing.request("chat", "m", 0).end(TIMES, {})
    tracing.shutdown()
    assert {span.name for span in exporter.get_finished_spans()} == {"chat m", "queue", "prefill", "decode"}


class DeadExporter(SpanExporter):
    """An endpoint that is down."""

    def export(self, spans: object) -> SpanExportResult:
        return SpanExportResult.FAILURE


def test_a_dead_exporter_disturbs_no_request() -> None:
    tracing = Tracing(DeadExporter())
    for _ in range(10):
        tracing.request("chat", "m", 0).end(TIMES, {})
    tracing.shutdown()


def test_the_table_has_the_conventions_names() -> None:
    names = {value for name, value in vars(convention).items() if name.startswith("GEN_AI_") and isinstance(value, str)}
    names |= {error_attributes.ERROR_TYPE, server_attributes.SERVER_ADDRESS, server_attributes.SERVER_PORT}
    assert set(ATTRIBUTES.values()) <= names
    deprecated = {convention.GEN_AI_USAGE_PROMPT_TOKENS, convention.GEN_AI_USAGE_COMPLETION_TOKENS}
    assert not deprecated & set(ATTRIBUTES.values())


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
