"""Collectors for tests: they decode what really comes over gRPC or HTTP, and can be made to fail or to keep waiting."""

import gzip
import threading
from collections.abc import Callable
from concurrent import futures
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Protocol

import grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class Received:
    """What has come so far; threads of the receivers put it there."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.metrics: list[Metric] = []
        self.resources: list[dict[str, Any]] = []
        self.num_requests = 0
        self.is_failing = False
        self.may_answer = threading.Event()
        self.may_answer.set()
        self._changed = threading.Condition()

    def begin(self) -> bool:
        """A request has come. Whether it is to be taken."""
        with self._changed:
            self.num_requests += 1
            self._changed.notify_all()
        self.may_answer.wait(30)
        return not self.is_failing

    def take_traces(self, request: trace_service_pb2.ExportTraceServiceRequest) -> None:
        with self._changed:
            for part in request.resource_spans:
                self.resources.append(attributes(part.resource.attributes))
                self.spans += [span for scope in part.scope_spans for span in scope.spans]
            self._changed.notify_all()

    def take_metrics(self, request: metrics_service_pb2.ExportMetricsServiceRequest) -> None:
        with self._changed:
            for part in request.resource_metrics:
                self.metrics += [metric for scope in part.scope_metrics for metric in scope.metrics]
            self._changed.notify_all()

    def until(self, condition: Callable[["Received"], object]) -> None:
        """Fails after a while."""
        with self._changed:
            assert self._changed.wait_for(lambda: condition(self), 20)

    def named(self, name: str) -> Span:
        (span,) = [span for span in self.spans if span.name == name]
        return span


class Receiver(Protocol):
    """A context manager. ``address``: host:port."""

    received: Received
    address: str

    def __enter__(self) -> "Receiver": ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...


class GrpcReceiver:
    """Port 0: any."""

    protocol = "grpc"

    def __init__(self, port: int = 0) -> None:
        self.received = Received()
        self._server = grpc.server(futures.ThreadPoolExecutor(2))
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(_Traces(self.received), self._server)
        metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server(_Metrics(self.received), self._server)
        self.port = self._server.add_insecure_port(f"127.0.0.1:{port}")
        self.address = f"127.0.0.1:{self.port}"

    def __enter__(self) -> "GrpcReceiver":
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.received.may_answer.set()
        self._server.stop(None).wait(10)


class _Traces(trace_service_pb2_grpc.TraceServiceServicer):
    def __init__(self, received: Received) -> None:
        self._received = received

    def Export(self, request: Any, context: Any) -> Any:
        if not self._received.begin():
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "told to")
        self._received.take_traces(request)
        return trace_service_pb2.ExportTraceServiceResponse()


class _Metrics(metrics_service_pb2_grpc.MetricsServiceServicer):
    def __init__(self, received: Received) -> None:
        self._received = received

    def Export(self, request: Any, context: Any) -> Any:
        if not self._received.begin():
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "told to")
        self._received.take_metrics(request)
        return metrics_service_pb2.ExportMetricsServiceResponse()


class HttpReceiver:
    """Port 0: any."""

    protocol = "http/protobuf"

    def __init__(self, port: int = 0) -> None:
        received = self.received = Received()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                is_taken = received.begin() and self.headers["content-type"] == "application/x-protobuf"
                if is_taken and self.path == "/v1/traces":
                    received.take_traces(trace_service_pb2.ExportTraceServiceRequest.FromString(body))
                elif is_taken and self.path == "/v1/metrics":
                    received.take_metrics(metrics_service_pb2.ExportMetricsServiceRequest.FromString(body))
                else:
                    is_taken = False
                self.send_response(200 if is_taken else 400)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_port
        self.address = f"127.0.0.1:{self.port}"

    def __enter__(self) -> "HttpReceiver":
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.received.may_answer.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def attributes(pairs: Any) -> dict[str, Any]:
    """As plain values."""
    found: dict[str, Any] = {}
    pair: KeyValue
    for pair in pairs:
        found[pair.key] = _plain(pair.value)
    return found


def _plain(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_plain(one) for one in value.array_value.values]
    return None if kind is None else getattr(value, kind)
