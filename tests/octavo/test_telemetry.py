"""What a server sends to a collector, as real collectors get it; and that a collector that is away disturbs nobody."""

import asyncio
import io
import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import structlog
from octavo_stubs import token_id, until
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from otlp_receivers import GrpcReceiver, HttpReceiver, attributes
from test_supervisor_life import Server, make_server  # noqa: F401 - a fixture

from ipc.config import ObservabilityConfig
from ipc.errors import ConfigError
from observability import otlp_endpoint
from observability.http_trace import HttpHead
from observability.logging import configure
from observability.otlp_endpoint import OtlpEndpoint
from observability.request_summary import RequestSummary
from observability.request_times import RequestTimes
from octavo.options import build_serve_config
from octavo.telemetry import Telemetry

TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = {"traceparent": f"00-{TRACE_ID}-{SPAN_ID}-01"}
HEAD = HttpHead("POST", "/v1/x", "http", "1.1", ("::1", 8000), "r1")
SUMMARY = RequestSummary("stop", RequestTimes(0, 1, 2, 3, 4, 5), 7, 5, operation="chat", model="m")
RECEIVERS = [GrpcReceiver, HttpReceiver]
ReceiverKind = type[GrpcReceiver] | type[HttpReceiver]


def telemetry(receiver: GrpcReceiver | HttpReceiver, **options: Any) -> Telemetry:
    return Telemetry.of(
        ObservabilityConfig(
            otlp_traces_endpoint=receiver.address,
            otlp_protocol=receiver.protocol,
            **options,  # type: ignore[arg-type]
        )
    )


def exporting(before: set[threading.Thread]) -> list[threading.Thread]:
    """Threads that have not given up yet."""
    return [one for one in set(threading.enumerate()) - before if "otel" in one.name.lower() or "otlp" in one.name]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# ---- through a server


@pytest.fixture
def lines() -> Iterator[Callable[[], list[dict[str, Any]]]]:
    """What is logged as JSON."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    stream = io.StringIO()
    configure("info", json=True, stream=stream)
    yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
    logging.captureWarnings(False)
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


@pytest.mark.parametrize("kind", RECEIVERS)
def test_requests_arrive_as_trees_whatever_becomes_of_them(
    make_server: Callable[..., Server],  # noqa: F811
    kind: ReceiverKind,
) -> None:
    async def test(server: Server) -> None:
        await server.until_status("/health", 200)
        body = {"prompt": "a", "max_tokens": 3, "temperature": 0}
        assert (await server.http.post("/v1/completions", json=body, headers=PARENT)).status_code == 200
        assert (await server.complete("f", 3)).status_code == 500
        async with server.http.stream(
            "POST", "/v1/completions", json={"prompt": "b", "max_tokens": 400, "stream": True}
        ):
            pass  # and leaves
        await asyncio.to_thread(until, lambda: server.supervisor._client.num_in_flight == 0)
        unsampled = {"traceparent": f"00-{TRACE_ID[::-1]}-{SPAN_ID}-00"}
        await server.http.post("/v1/completions", json=body, headers=unsampled)
        server.signal()

    with kind() as receiver:
        orders = {"fail_on": token_id("f")}
        options = {"otlp_traces_endpoint": receiver.address, "otlp_protocol": receiver.protocol}
        assert make_server(orders, **options).run(test) == 0  # what is held is sent at the end
        received = receiver.received
    traces: dict[str, dict[str, Span]] = {}
    for span in received.spans:
        traces.setdefault(span.trace_id.hex(), {})[span.name] = span
    traces = {trace_id: spans for trace_id, spans in traces.items() if "POST /v1/completions" in spans}
    assert len(traces) == 3
    assert {(one["service.name"], one["service.version"]) for one in received.resources} == {("octavo", "0.1.0")}
    for spans in traces.values():
        http = spans["POST /v1/completions"]
        (request,) = [span for name, span in spans.items() if name.startswith("text_completion ")]
        assert request.parent_span_id == http.span_id
        others = [span for span in spans.values() if span not in (http, request)]
        assert all(span.parent_span_id == request.span_id for span in others)
        assert "tokenize" in spans
    by_error = {}
    for spans in traces.values():
        (request,) = [span for name, span in spans.items() if name.startswith("text_completion ")]
        by_error[attributes(request.attributes).get("error.type")] = (request, spans["POST /v1/completions"])
    assert set(by_error) == {None, "corrupt_logits", "abort"}
    request, http = by_error[None]
    assert (http.trace_id.hex(), http.parent_span_id.hex()) == (TRACE_ID, SPAN_ID)
    assert (http.kind, request.kind) == (Span.SPAN_KIND_SERVER, Span.SPAN_KIND_INTERNAL)
    found = attributes(request.attributes)
    assert (found["gen_ai.request.temperature"], found["gen_ai.usage.output_tokens"]) == (0.0, 3)
    assert found["gen_ai.response.finish_reasons"] == ["length"]
    assert (request.status.code, http.status.code) == (Status.STATUS_CODE_UNSET, Status.STATUS_CODE_UNSET)
    assert attributes(http.attributes)["http.response.status_code"] == 200
    for error, message in (("corrupt_logits", "not a number"), ("abort", "the client closed the connection")):
        request, http = by_error[error]
        assert (request.status.code, request.status.message) == (Status.STATUS_CODE_ERROR, message)
        assert http.status.code == Status.STATUS_CODE_ERROR


def test_spans_come_from_each_of_several_gateways(make_server: Callable[..., Server]) -> None:  # noqa: F811
    async def test(server: Server) -> None:
        await server.until_status("/health", 200)
        answers = await asyncio.gather(*(server.complete("a", 3) for _ in range(4)))
        assert [answer.status_code for answer in answers] == [200] * 4
        server.signal()

    with GrpcReceiver() as receiver:
        options = {"otlp_traces_endpoint": receiver.address, "otlp_protocol": "grpc", "metrics_prefix": "vllm"}
        assert make_server(api_server_count=2, **options).run(test) == 0
        spans = receiver.received.spans
    assert len([span for span in spans if span.name.startswith("text_completion ")]) == 4


def test_the_prefix_of_metrics_is_the_flags(make_server: Callable[..., Server]) -> None:  # noqa: F811
    async def test(server: Server) -> None:
        await server.until_status("/health", 200)
        await server.complete("a", 3)
        text = (await server.http.get("/metrics")).text
        assert "vllm:request_success_total{" in text
        assert "octavo:" not in text
        server.signal()

    assert make_server(metrics_prefix="vllm").run(test) == 0


# ---- a collector that is away


@pytest.mark.parametrize("kind", RECEIVERS)
def test_a_collector_that_refuses_is_told_once_and_once_more_when_it_is_back(
    kind: ReceiverKind, lines: Callable[[], list[dict[str, Any]]]
) -> None:
    with kind() as receiver:
        tracing = telemetry(receiver).tracing
        processor: Any = tracing._provider._active_span_processor  # type: ignore[union-attr]
        receiver.received.is_failing = True
        for _ in range(3):
            tracing.exchange(HEAD).end("/v1/x", 200)
            processor.force_flush()
        assert receiver.received.num_requests == 3
        receiver.received.is_failing = False
        for _ in range(2):
            tracing.exchange(HEAD).end("/v1/x", 200)
            processor.force_flush()
        receiver.received.until(lambda received: len(received.spans) == 2)
        tracing.shutdown()
    lost, back = lines()
    assert (lost["level"], lost["signal"]) == ("warning", "traces")
    assert (back["level"], back["signal"]) == ("info", "traces")
    assert receiver.address in lost["endpoint"]


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_a_collector_that_is_not_there_delays_nobody(
    make_server: Callable[..., Server],  # noqa: F811
    protocol: str,
    monkeypatch: pytest.MonkeyPatch,
    lines: Callable[[], list[dict[str, Any]]],
) -> None:
    monkeypatch.setattr("observability.tracing.SHUTDOWN_SECONDS", 0.2)
    before = set(threading.enumerate())

    async def test(server: Server) -> None:
        await server.until_status("/health", 200)
        for _ in range(5):
            assert (await server.complete("a", 3)).status_code == 200
        server.signal()

    address = f"127.0.0.1:{free_port()}"
    options = {"otlp_traces_endpoint": address, "otlp_metrics_endpoint": address, "otlp_protocol": protocol}
    assert make_server(**options).run(test) == 0
    until(lambda: not exporting(before))
    told = [line for line in lines() if line["level"] == "warning"]
    assert sorted(line["signal"] for line in told) == ["metrics", "traces"]


def test_a_collector_that_does_not_answer_keeps_no_server_from_ending(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("observability.tracing.SHUTDOWN_SECONDS", 0.05)
    before = set(threading.enumerate())
    with HttpReceiver() as receiver:
        receiver.received.may_answer.clear()
        tracing = telemetry(receiver).tracing
        for _ in range(600):  # more than one batch: the thread begins to send
            tracing.exchange(HEAD).end("/v1/x", 200)
        receiver.received.until(lambda received: received.num_requests == 1)
        started = time.monotonic()
        for _ in range(3000):  # more than the queue holds
            tracing.exchange(HEAD).end("/v1/x", 200)
        tracing.shutdown()
        assert time.monotonic() - started < 10
        receiver.received.may_answer.set()
        until(lambda: not exporting(before))


# ---- metrics


@pytest.mark.parametrize("kind", RECEIVERS)
def test_the_conventions_metrics_arrive(kind: ReceiverKind) -> None:
    with kind() as receiver:
        sent = Telemetry.of(
            ObservabilityConfig(otlp_metrics_endpoint=receiver.address, otlp_protocol=receiver.protocol)  # type: ignore[arg-type]
        )
        assert not sent.tracing.is_on
        assert sent.metrics is not None
        sent.metrics.observe(SUMMARY)
        sent.shutdown()
        found = {metric.name: metric for metric in receiver.received.metrics}
    assert set(found) == {"gen_ai.server.request.duration", "gen_ai.client.token.usage"}
    duration = found["gen_ai.server.request.duration"]
    (point,) = duration.histogram.data_points
    assert (duration.unit, point.count, point.explicit_bounds[0]) == ("s", 1, 0.01)
    assert attributes(point.attributes)["gen_ai.request.model"] == "m"


def test_nothing_is_sent_by_default() -> None:
    sent = Telemetry.of(ObservabilityConfig())
    assert (sent.tracing.is_on, sent.metrics) == (False, None)
    sent.shutdown()


# ---- flags


@pytest.mark.parametrize(
    ("text", "protocol", "expected"),
    [
        ("localhost:4317", "auto", OtlpEndpoint("grpc", "localhost:4317", False)),
        ("http://h:4317", "auto", OtlpEndpoint("grpc", "h:4317", False)),
        ("https://h:4317/", "auto", OtlpEndpoint("grpc", "h:4317", True)),
        ("grpc://h:4318", "auto", OtlpEndpoint("grpc", "h:4318", False)),
        ("grpcs://h:443", "auto", OtlpEndpoint("grpc", "h:443", True)),
        ("[::1]:4317", "auto", OtlpEndpoint("grpc", "[::1]:4317", False)),
        ("localhost:4318", "auto", OtlpEndpoint("http/protobuf", "http://localhost:4318/v1/traces", False)),
        ("http://h:4318/", "auto", OtlpEndpoint("http/protobuf", "http://h:4318/v1/traces", False)),
        ("https://h/otlp/v1/traces", "auto", OtlpEndpoint("http/protobuf", "https://h/otlp/v1/traces", True)),
        ("https://h", "http/protobuf", OtlpEndpoint("http/protobuf", "https://h/v1/traces", True)),
        ("h:4318", "grpc", OtlpEndpoint("grpc", "h:4318", False)),
    ],
)
def test_where_a_collector_is(text: str, protocol: Any, expected: OtlpEndpoint) -> None:
    assert OtlpEndpoint.parse(text, protocol, "traces") == expected


@pytest.mark.parametrize(
    ("values", "flag"),
    [
        ({"otlp_traces_endpoint": ""}, "--otlp-traces-endpoint"),
        ({"otlp_traces_endpoint": "h"}, "--otlp-traces-endpoint.*port"),
        ({"otlp_traces_endpoint": "h:99999"}, "--otlp-traces-endpoint"),
        ({"otlp_metrics_endpoint": "ftp://h:1"}, "--otlp-metrics-endpoint"),
        ({"otlp_metrics_endpoint": "http://h:4317/x", "otlp_protocol": "grpc"}, "--otlp-metrics-endpoint"),
        ({"otlp_traces_endpoint": "grpc://h:4317", "otlp_protocol": "http/protobuf"}, "--otlp-traces-endpoint"),
        ({"otlp_traces_endpoint": "http://h:4317?a=b"}, "--otlp-traces-endpoint"),
        ({"otlp_protocol": "http/json"}, "--otlp-protocol"),
        ({"otlp_capture_content": True}, "--otlp-capture-content"),
        ({"metrics_prefix": "a:b"}, "--metrics-prefix"),
        ({"metrics_prefix": ""}, "--metrics-prefix"),
        ({"log_format": "xml"}, "--log-format"),
    ],
)
def test_senseless_settings_are_refused_by_name(values: dict[str, object], flag: str) -> None:
    with pytest.raises(ConfigError, match=flag):
        build_serve_config("m", values)


def test_a_password_in_the_url_is_refused_and_not_shown() -> None:
    with pytest.raises(ConfigError, match="OTEL_EXPORTER_OTLP_HEADERS") as caught:
        build_serve_config("m", {"otlp_traces_endpoint": "http://me:hunter2@h:4317"})
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("package", ["grpc", "http"])
def test_a_missing_exporter_is_told_with_its_extra(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    def find_spec(name: str) -> None:
        if package == "http":
            raise ModuleNotFoundError(name)

    monkeypatch.setattr(otlp_endpoint, "find_spec", find_spec)
    protocol = "grpc" if package == "grpc" else "http/protobuf"
    with pytest.raises(ConfigError, match=r"octavo\[otel\]"):
        build_serve_config("m", {"otlp_traces_endpoint": "h:1", "otlp_protocol": protocol})
