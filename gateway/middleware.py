"""Pure-ASGI layers around the routes: request id, metrics and trace, the last line against errors, the body limit."""

import logging
import time
from collections.abc import Iterable
from typing import Protocol

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from structlog.contextvars import bound_contextvars

from gateway.request_id import is_request_id, new_request_id
from gateway.responses import send_error
from gateway.schema.errors import from_exception, http_error
from ipc.errors import RequestError
from observability.http_trace import HttpHead, HttpTrace, SilentExchange
from observability.tracing import Tracing

logger = logging.getLogger("octavo.gateway")

CLIENT_CLOSED_REQUEST = 499
"""The status under which a request is counted whose client left before the answer."""


UNTRACED_PATHS = frozenset({"/health", "/health/live", "/health/ready", "/metrics"})
"""Asked by machines every few seconds."""

MAX_TRACED_PATH = 1024  # characters

_RESPONSE_HEADERS = "response_headers"
_TRACE = "trace"
_SILENT = SilentExchange()


def add_response_headers(scope: Scope, headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Whatever answers the request will have them, too."""
    scope.setdefault("state", {}).setdefault(_RESPONSE_HEADERS, []).extend(headers)


def trace_of(scope: Scope) -> HttpTrace:
    """The exchange's trace, which keeps nothing if tracing is off."""
    trace: HttpTrace = scope.get("state", {}).get(_TRACE, _SILENT)
    return trace


class HttpMetrics(Protocol):
    """Where exchanges are counted."""

    def observe_http(self, handler: str, method: str, status: int, seconds: float) -> None: ...


class ExchangeMiddleware:
    """Gives every exchange an ``X-Request-Id``, times, counts and traces it, and turns a bug into a JSON 500.

    The client's own id is used when it is up to 128 characters of ``A-Z a-z 0-9 . _ : -``, else a new one. Log lines
    that are written meanwhile have the id, and the trace's if there is one.
    """

    def __init__(self, app: ASGIApp, metrics: HttpMetrics, tracing: Tracing) -> None:
        self.app, self._metrics, self._tracing = app, metrics, tracing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = time.monotonic()
        request_id = _request_id(scope)
        names = {"request_id": request_id.decode()}
        scope.setdefault("state", {})["request_id"] = names["request_id"]
        trace: HttpTrace = _SILENT
        if self._tracing.is_on and scope["path"] not in UNTRACED_PATHS:
            trace = scope["state"][_TRACE] = self._tracing.exchange(_head(scope, names["request_id"]))
            names["trace_id"] = trace.trace_id
        status = CLIENT_CLOSED_REQUEST

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                added = scope["state"].get(_RESPONSE_HEADERS, ())
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", request_id), *added]
            await send(message)

        with bound_contextvars(**names):
            try:
                await self.app(scope, receive, send_with_id)
            except Exception as error:
                logger.exception("request %s failed unexpectedly", request_id.decode())
                trace.fail(type(error).__qualname__)
                if status != CLIENT_CLOSED_REQUEST:
                    raise  # the headers are out: the server must cut the connection
                await send_error(send_with_id, http_error(500, "internal error", code="internal_error"))
            finally:
                route = getattr(scope.get("endpoint"), "path", None)
                self._metrics.observe_http(route or "other", scope["method"], status, time.monotonic() - started)
                trace.end(route, None if status == CLIENT_CLOSED_REQUEST else status)


class BodyLimitMiddleware:
    """Answers 413 to a body beyond ``limit`` bytes: at once when its length is announced, else when it gets there."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self.app, self._limit = app, limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        announced = next((value for name, value in scope["headers"] if name == b"content-length"), b"")
        # The length is compared as text first: Python refuses to read a number of thousands of digits.
        if announced.isdigit() and (len(announced) > 18 or int(announced) > self._limit):
            await send_error(send, from_exception(self._too_large()))
            return
        num_bytes = 0

        async def limited_receive() -> Message:
            nonlocal num_bytes
            message = await receive()
            if message["type"] == "http.request":
                num_bytes += len(message.get("body", b""))
                if num_bytes > self._limit:
                    raise self._too_large()
            return message

        await self.app(scope, limited_receive, send)

    def _too_large(self) -> RequestError:
        return RequestError(
            f"the request body is larger than {self._limit} bytes", code="request_too_large", status=413
        )


def _head(scope: Scope, request_id: str) -> HttpHead:
    found = {b"traceparent": "", b"tracestate": ""}
    for name, value in scope["headers"]:
        if name in found:
            # The convention's way to read a list that came in several headers; a second traceparent makes it malformed.
            found[name] += ("," if found[name] else "") + value.decode("latin-1")
    server = scope.get("server")
    return HttpHead(
        method=scope["method"],
        path=scope["path"][:MAX_TRACED_PATH],
        scheme=scope.get("scheme", "http"),
        version=scope.get("http_version", "1.1"),
        server=None if server is None else (str(server[0]), server[1]),
        request_id=request_id,
        traceparent=found[b"traceparent"],
        tracestate=found[b"tracestate"],
    )


def _request_id(scope: Scope) -> bytes:
    for name, value in scope["headers"]:
        if name == b"x-request-id" and is_request_id(value.decode("latin-1")):
            return bytes(value)
    return new_request_id().encode()
