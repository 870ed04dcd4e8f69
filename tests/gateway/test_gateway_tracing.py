"""What a request leaves behind beside its answer: spans as an exporter gets them, log lines, and gen_ai metrics."""

import asyncio
import hashlib
import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog
from gateway_fakes import CHAT, COMP, AsgiCall, FakeEngineClient, call, chat, comp, make_state
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from gateway.app import create_app
from gateway.captured_content import CUT, MAX_CHARS
from ipc.config import TenantConfig
from ipc.errors import CapacityError, EngineError, RequestError
from ipc.messages import EventKind, FinishReason, WaitReason
from observability.gen_ai_metrics import GenAiMetrics
from observability.logging import configure
from observability.tracing import Tracing

TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = (b"traceparent", f"00-{TRACE_ID}-{SPAN_ID}-01".encode())
PHASES = {"tokenize", "queue", "prefill", "decode"}


class Traced:
    """A gateway whose spans are kept."""

    def __init__(self, engine: FakeEngineClient, **changes: Any) -> None:
        self.exporter = InMemorySpanExporter()
        self.state = make_state(engine, tracing=Tracing(SimpleSpanProcessor(self.exporter)), **changes)
        self.app = create_app(self.state)

    @property
    def spans(self) -> list[ReadableSpan]:
        return list(self.exporter.get_finished_spans())

    def named(self, name: str) -> ReadableSpan:
        (span,) = [span for span in self.spans if span.name == name]
        return span


@pytest.fixture
def traced(engine: FakeEngineClient) -> Traced:
    return Traced(engine)


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def events(span: ReadableSpan) -> list[tuple[str, dict[str, Any]]]:
    return [(event.name, dict(event.attributes or {})) for event in span.events]


def is_child(span: ReadableSpan, parent: ReadableSpan) -> bool:
    return span.parent is not None and parent.context is not None and span.parent.span_id == parent.context.span_id


def test_a_request_is_a_tree_below_the_clients_span(engine: FakeEngineClient, traced: Traced) -> None:
    engine.answer("abc", num_cached=2)
    body = chat(seed=5, model="alias", max_tokens=9, stop=["x"], top_p=0.5, request_id="mine")
    answer = call(traced.app, CHAT, body, headers=[PARENT, (b"x-request-id", b"r1")])
    assert answer.status == 200
    http, request = traced.named("POST /v1/chat/completions"), traced.named("chat alias")
    assert {span.name for span in traced.spans} == {http.name, request.name} | PHASES
    assert {format(span.context.trace_id, "032x") for span in traced.spans if span.context} == {TRACE_ID}
    assert http.parent is not None
    assert (format(http.parent.span_id, "016x"), http.kind) == (SPAN_ID, SpanKind.SERVER)
    assert is_child(request, http)
    assert request.kind is SpanKind.INTERNAL
    assert all(is_child(traced.named(name), request) for name in PHASES)
    assert attributes(http) == {
        "http.request.method": "POST",
        "http.route": "/v1/chat/completions",
        "http.response.status_code": 200,
        "http.response.header.x-request-id": ("r1",),
        "url.path": "/v1/chat/completions",
        "url.scheme": "http",
        "network.protocol.version": "1.1",
        "server.address": "127.0.0.1",
        "server.port": 80,
    }
    assert attributes(request) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "octavo",
        "gen_ai.request.model": "alias",
        "gen_ai.request.temperature": 0.0,
        "gen_ai.request.top_p": 0.5,
        "gen_ai.request.seed": 5,
        "gen_ai.request.stream": False,
        "gen_ai.request.max_tokens": 9,
        "gen_ai.request.frequency_penalty": 0.0,
        "gen_ai.request.presence_penalty": 0.0,
        "gen_ai.request.stop_sequences": ("x",),
        "gen_ai.response.id": "chatcmpl-mine",
        "gen_ai.response.model": "tiny",
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.response.time_to_first_chunk": attributes(request)["gen_ai.response.time_to_first_chunk"],
        "gen_ai.usage.input_tokens": answer.json["usage"]["prompt_tokens"],
        "gen_ai.usage.cache_read.input_tokens": 2,
        "gen_ai.usage.output_tokens": 4,
        "server.address": "127.0.0.1",
        "server.port": 80,
        "octavo.engine.request_id": "0000000000000001",
        "octavo.tenant": "default",
    }
    assert {span.status.status_code for span in traced.spans} == {StatusCode.UNSET}
    assert engine.streams[0].request.traceparent == f"00-{TRACE_ID}-{format(request.context.span_id, '016x')}-01"
    for span in (request, *(traced.named(name) for name in PHASES)):
        assert span.start_time is not None
        assert span.end_time is not None
        assert span.start_time <= span.end_time
    assert (http.start_time or 0) <= (request.start_time or 0) <= (traced.named("tokenize").start_time or 0)


def test_the_schedulers_events_stand_on_the_request_and_chunks_on_the_prefill(
    engine: FakeEngineClient, traced: Traced
) -> None:
    happened = (
        (EventKind.BLOCKED, WaitReason.KV_BLOCKS),
        (EventKind.GRAMMAR_READY, 0),
        (EventKind.CACHE_HIT, 16),
        (EventKind.CHUNK, 7),
        (EventKind.PREEMPTED, 2**63 + 5),
        (EventKind.PREEMPTED_BY_SWAP, 6),
        (EventKind.RESUMED, 3),
        (EventKind.RESTARTED, 0),
        (EventKind.CHUNK, 8),
    )
    engine.answer("abc", events=happened)
    call(traced.app, CHAT, chat())
    assert events(traced.named("chat tiny")) == [
        ("admitted", {}),
        ("blocked", {"reason": "kv_blocks"}),
        ("grammar_ready", {}),
        ("cache_hit", {"tokens": 16}),
        ("preempted", {"by": "8000000000000005", "kind": "recompute"}),
        ("preempted", {"by": "0000000000000006", "kind": "swap"}),
        ("resumed", {"tokens": 3}),
        ("restarted", {}),
    ]
    assert events(traced.named("prefill")) == [("chunk", {"tokens": 7}), ("chunk", {"tokens": 8})]
    text = traced.state.metrics.render().decode()  # type: ignore[attr-defined]
    assert 'request_num_preemptions_sum{engine="0",model_name="tiny"} 2.0' in text


@pytest.mark.parametrize("seed", [-1, -(2**63), 2**63 - 1])
def test_a_seed_is_shown_as_the_client_may_send_it(engine: FakeEngineClient, traced: Traced, seed: int) -> None:
    call(traced.app, CHAT, chat(seed=seed))
    assert attributes(traced.named("chat tiny"))["gen_ai.request.seed"] == seed


def test_every_prompt_has_its_span_and_every_choice_its_events(engine: FakeEngineClient, traced: Traced) -> None:
    engine.answer("abc")
    call(traced.app, COMP, comp(["a", "b"], n=2, stream=True))
    http = traced.named("POST /v1/completions")
    requests = [span for span in traced.spans if span.name == "text_completion tiny"]
    assert len(requests) == 2
    assert all(is_child(span, http) for span in requests)
    assert [event for span in requests for event in events(span)] == [("admitted", {"choice": 0})] * 2
    assert attributes(requests[0])["gen_ai.request.choice.count"] == 2
    assert attributes(requests[0])["gen_ai.request.stream"] is True


@pytest.mark.parametrize("stream", [False, True])
def test_an_engine_that_fails_ends_the_spans_as_errors(engine: FakeEngineClient, traced: Traced, stream: bool) -> None:
    engine.answer("abc", hold_after=1, failure=EngineError("the engine died", code="engine_died"))
    assert call(traced.app, CHAT, chat(stream=stream)).status == (200 if stream else 500)
    request, http = traced.named("chat tiny"), traced.named("POST /v1/chat/completions")
    assert (request.status.status_code, request.status.description) == (StatusCode.ERROR, "the engine died")
    assert attributes(request)["error.type"] == "engine_died"
    assert (http.status.status_code, http.status.description) == (StatusCode.ERROR, "the engine died")
    assert attributes(http)["error.type"] == "engine_died"
    assert attributes(http)["http.response.status_code"] == (200 if stream else 500)


@pytest.mark.parametrize(
    ("refusal", "status", "error_type"),
    [
        (CapacityError("full", retry_after=1), 429, "refused"),
        (RequestError("no", code="impossible"), 400, "impossible"),
    ],
)
def test_a_refusal_is_an_error_of_the_request_and_not_of_the_server(
    engine: FakeEngineClient, traced: Traced, refusal: Exception, status: int, error_type: str
) -> None:
    engine.answer("abc", refusal=refusal)
    assert call(traced.app, COMP, comp()).status == status
    assert attributes(traced.named("text_completion tiny"))["error.type"] == error_type
    http = traced.named("POST /v1/completions")
    assert (http.status.status_code, attributes(http)["http.response.status_code"]) == (StatusCode.UNSET, status)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_ends_the_spans_as_aborted(engine: FakeEngineClient, traced: Traced, stream: bool) -> None:
    engine.answer("abc", hold_after=1)

    async def scenario() -> None:
        request = AsgiCall(traced.app, CHAT, chat(stream=stream)).start()
        while not engine.streams or engine.streams[0].num_outputs < 1:
            await asyncio.sleep(0)
        if stream:
            await request.until_sent(2)
        request.disconnect()
        await request.ended()

    asyncio.run(scenario())
    request, http = traced.named("chat tiny"), traced.named("POST /v1/chat/completions")
    for span in (request, http):
        assert (span.status.status_code, span.status.description) == (
            StatusCode.ERROR,
            "the client closed the connection",
        )
        assert attributes(span)["error.type"] == "abort"
    assert attributes(http).get("http.response.status_code") == (200 if stream else None)
    text = traced.state.metrics.render().decode()  # type: ignore[attr-defined]
    assert 'request_success_total{engine="0",finished_reason="abort",model_name="tiny"} 1.0' in text


def test_a_missed_deadline_is_an_error_with_its_tokens(engine: FakeEngineClient, traced: Traced) -> None:
    engine.answer("abc", finish=FinishReason.DEADLINE)
    assert call(traced.app, CHAT, chat(deadline_ms=60_000)).status == 408
    request, http = traced.named("chat tiny"), traced.named("POST /v1/chat/completions")
    assert request.status.status_code is StatusCode.ERROR
    found = attributes(request)
    assert found["error.type"] == "deadline_exceeded"
    assert found["gen_ai.response.finish_reasons"] == ("deadline",)
    assert found["gen_ai.usage.output_tokens"] == 3
    assert (http.status.status_code, attributes(http)["http.response.status_code"]) == (StatusCode.UNSET, 408)
    text = traced.state.metrics.render().decode()  # type: ignore[attr-defined]
    assert 'deadline_misses_total{engine="0",model_name="tiny",stage="running"} 1.0' in text


def test_a_bug_is_a_500_with_the_name_of_its_exception(engine: FakeEngineClient, traced: Traced) -> None:
    engine.script = lambda request: 1 // 0  # type: ignore[assignment, return-value]
    assert call(traced.app, CHAT, chat()).status == 500
    http = traced.named("POST /v1/chat/completions")
    assert attributes(http)["error.type"] == "ZeroDivisionError"
    assert attributes(http)["http.response.status_code"] == 500


def test_what_never_got_to_the_engine_is_one_span(engine: FakeEngineClient, traced: Traced) -> None:
    call(traced.app, CHAT, {"messages": 5})
    call(traced.app, "/nowhere", {})
    call(traced.app, "/v1/models", method="BREW")
    names = [(span.name, attributes(span)["http.request.method"]) for span in traced.spans]
    assert names == [("POST /v1/chat/completions", "POST"), ("POST", "POST"), ("HTTP /v1/models", "_OTHER")]
    assert [attributes(span)["http.response.status_code"] for span in traced.spans] == [400, 404, 405]
    call(traced.app, "/" + "x" * 5000, {})
    assert len(attributes(traced.spans[-1])["url.path"]) == 1024


def test_what_machines_ask_all_the_time_is_not_traced(traced: Traced) -> None:
    for path in ("/health", "/health/live", "/health/ready", "/metrics"):
        assert call(traced.app, path, method="GET").status == 200
    assert traced.spans == []
    call(traced.app, "/v1/models", method="GET")
    assert [span.name for span in traced.spans] == ["GET /v1/models"]


# ---- sampling


def test_the_client_may_decide_against_its_trace(engine: FakeEngineClient, traced: Traced) -> None:
    parent = (b"traceparent", f"00-{TRACE_ID}-{SPAN_ID}-00".encode())
    assert call(traced.app, CHAT, chat(), headers=[parent]).status == 200
    assert traced.spans == []
    assert engine.streams[0].request.traceparent.startswith(f"00-{TRACE_ID}-")
    assert engine.streams[0].request.traceparent.endswith("-00")


@pytest.mark.parametrize(
    ("sampler", "argument", "with_parent", "num_spans"),
    [
        ("always_off", "", True, 0),
        ("parentbased_always_off", "", False, 0),
        ("parentbased_always_off", "", True, 6),
        ("parentbased_traceidratio", "0", False, 0),
        ("traceidratio", "1", False, 6),
    ],
)
def test_the_sdks_own_sampler_settings_hold(
    engine: FakeEngineClient,
    monkeypatch: pytest.MonkeyPatch,
    sampler: str,
    argument: str,
    with_parent: bool,
    num_spans: int,
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", sampler)
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", argument or "1")
    traced = Traced(engine)
    call(traced.app, CHAT, chat(), headers=[PARENT] if with_parent else [])
    assert len(traced.spans) == num_spans


# ---- text


def test_no_text_unless_it_is_asked_for(engine: FakeEngineClient, traced: Traced) -> None:
    engine.answer("xyzzy")
    call(traced.app, CHAT, chat("plugh"))
    shown = "".join(span.to_json() for span in traced.spans)
    assert "xyzzy" not in shown
    assert "plugh" not in shown


def test_captured_text_has_the_conventions_form(engine: FakeEngineClient) -> None:
    traced = Traced(engine, captures_content=True)
    engine.answer("xyzzy")
    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "plugh"}, {"type": "text", "text": "?"}]},
    ]
    call(traced.app, CHAT, {"messages": messages, "n": 2})
    found = attributes(traced.named("chat tiny"))
    assert json.loads(found["gen_ai.input.messages"]) == [
        {"role": "system", "parts": [{"type": "text", "content": "be brief"}]},
        {"role": "user", "parts": [{"type": "text", "content": "plugh"}, {"type": "text", "content": "?"}]},
    ]
    said = {"role": "assistant", "parts": [{"type": "text", "content": "xyzzy"}], "finish_reason": "stop"}
    assert json.loads(found["gen_ai.output.messages"]) == [said, said]
    assert "plugh" not in "".join(span.to_json() for span in traced.spans if span.name != "chat tiny")


def test_captured_prompts_are_text_and_bounded(engine: FakeEngineClient) -> None:
    traced = Traced(engine, captures_content=True)
    engine.answer("x")
    call(traced.app, COMP, comp([[60, 61]], max_tokens=1))
    ids = attributes(traced.named("text_completion tiny"))["gen_ai.input.messages"]
    assert len(json.loads(ids)[0]["parts"][0]["content"]) == 2
    traced.exporter.clear()
    call(traced.app, COMP, comp("b" * (MAX_CHARS + 9), truncate_prompt_tokens=5, max_tokens=1))
    call(traced.app, CHAT, chat("c" * (MAX_CHARS + 9), truncate_prompt_tokens=5, max_tokens=1))
    (text,) = json.loads(attributes(traced.named("chat tiny"))["gen_ai.input.messages"])
    assert text["parts"][0]["content"] == "c" * MAX_CHARS + CUT


# ---- log lines


@pytest.fixture
def log_stream() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    stream = io.StringIO()
    configure("info", json=True, stream=stream)
    yield stream
    logging.captureWarnings(False)
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_when_a_request_is_taken_and_one_when_it_ends(engine: FakeEngineClient, log_stream: io.StringIO) -> None:
    key = "secret-key"
    digest = hashlib.sha256(key.encode()).hexdigest()
    traced = Traced(engine, logs_requests=True, tenant_configs=(TenantConfig(name="acme", keys=(digest,)),))
    engine.answer("xyzzy", num_cached=1)
    headers = [PARENT, (b"x-request-id", b"r1"), (b"authorization", f"Bearer {key}".encode())]
    call(traced.app, CHAT, chat("plugh", stream=True, max_tokens=3, request_id="mine"), headers=headers)
    accepted, ended = lines(log_stream)
    names = {"request_id": "r1", "id": "chatcmpl-mine", "trace_id": TRACE_ID, "tenant": "acme", "model": "tiny"}
    assert names.items() <= accepted.items()
    assert names.items() <= ended.items()
    assert accepted["event"] == "request accepted"
    assert (accepted["n"], accepted["max_tokens"], accepted["stream"]) == (1, 3, True)
    assert (ended["event"], ended["finish_reason"], ended["output_tokens"]) == ("request ended", "length", 3)
    assert (ended["cached_tokens"], ended["prompt_tokens"]) == (1, accepted["prompt_tokens"])
    for name in ("seconds", "first_token_seconds", "queue_seconds", "prefill_seconds", "decode_seconds"):
        assert ended[name] >= 0
    for text in ("xyzzy", "plugh", key, digest):
        assert text not in log_stream.getvalue()


def test_requests_that_fail_are_logged_with_their_error(engine: FakeEngineClient, log_stream: io.StringIO) -> None:
    app = create_app(make_state(engine, logs_requests=True))
    engine.answer("abc", hold_after=1, failure=EngineError("died", code="engine_died"))
    call(app, CHAT, chat())
    engine.answer("abc", refusal=RequestError("no", code="impossible"))
    call(app, CHAT, chat())
    shown = [(line["event"], line.get("finish_reason"), line.get("error")) for line in lines(log_stream)]
    assert shown == [
        ("request accepted", None, None),
        ("request ended", "error", "engine_died"),
        ("request refused", None, "impossible"),
    ]
    assert not any("trace_id" in line for line in lines(log_stream))


def test_lines_of_a_request_have_its_names_and_others_do_not(engine: FakeEngineClient, log_stream: io.StringIO) -> None:
    traced = Traced(engine)
    engine.script = lambda request: 1 // 0  # type: ignore[assignment, return-value]
    call(traced.app, CHAT, chat(), headers=[PARENT, (b"x-request-id", b"r1")])
    logging.getLogger("octavo.gateway").warning("later")
    bug, later = lines(log_stream)
    assert (bug["request_id"], bug["trace_id"]) == ("r1", TRACE_ID)
    assert "request_id" not in later


def test_nothing_is_logged_by_default(engine: FakeEngineClient, log_stream: io.StringIO) -> None:
    call(create_app(make_state(engine)), CHAT, chat())
    assert lines(log_stream) == []


# ---- OpenTelemetry's metrics


def points(reader: InMemoryMetricReader) -> dict[str, list[HistogramDataPoint]]:
    data = reader.get_metrics_data()
    assert data is not None
    found = [metric for part in data.resource_metrics for scope in part.scope_metrics for metric in scope.metrics]
    return {metric.name: list(metric.data.data_points) for metric in found}  # type: ignore[arg-type]


def test_the_conventions_metrics(engine: FakeEngineClient) -> None:
    reader = InMemoryMetricReader()
    app = create_app(make_state(engine, observer=GenAiMetrics(reader)))
    engine.answer("abcd")
    call(app, CHAT, chat(model="alias", max_tokens=4))
    engine.answer("abcd", hold_after=1, failure=EngineError("died", code="engine_died"))
    call(app, CHAT, chat(model="alias"))
    found = points(reader)
    common = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "octavo",
        "gen_ai.request.model": "alias",
        "gen_ai.response.model": "tiny",
        "server.address": "127.0.0.1",
        "server.port": 80,
    }
    durations = found["gen_ai.server.request.duration"]
    assert [dict(point.attributes or {}) for point in durations] == [common, common | {"error.type": "engine_died"}]
    assert tuple(durations[0].explicit_bounds) == pytest.approx([0.01 * 2**power for power in range(14)])
    for name, first in (("time_to_first_token", 0.001), ("time_per_output_token", 0.01)):
        (point,) = found[f"gen_ai.server.{name}"]
        assert (point.count, dict(point.attributes or {}), point.explicit_bounds[0]) == (1, common, first)
    tokens = {(point.attributes or {})["gen_ai.token.type"]: point for point in found["gen_ai.client.token.usage"]}
    assert {name: point.count for name, point in tokens.items()} == {"input": 2, "output": 2}
    assert tokens["output"].sum == 5
    assert tuple(tokens["input"].explicit_bounds) == tuple(4**power for power in range(14))
