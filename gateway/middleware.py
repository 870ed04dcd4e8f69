"""Pure-ASGI layers around the routes: request id, HTTP metrics, the last line against errors, the body limit."""

import logging
import time
from collections.abc import Iterable
from typing import Protocol

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.request_id import is_request_id, new_request_id
from gateway.responses import send_error
from gateway.schema.errors import from_exception, http_error
from ipc.errors import RequestError

logger = logging.getLogger("octavo.gateway")

CLIENT_CLOSED_REQUEST = 499
"""The status under which a request is counted whose client left before the answer."""


_RESPONSE_HEADERS = "response_headers"


def add_response_headers(scope: Scope, headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Whatever answers the request will have them, too."""
    scope.setdefault("state", {}).setdefault(_RESPONSE_HEADERS, []).extend(headers)


class HttpMetrics(Protocol):
    """Where exchanges are counted."""

    def observe_http(self, handler: str, method: str, status: int, seconds: float) -> None: ...


class ExchangeMiddleware:
    """Gives every exchange an ``X-Request-Id``, times and counts it, and turns a bug into a JSON 500.

    The client's own id is used when it is up to 128 characters of ``A-Z a-z 0-9 . _ : -``, else a new one.
    """

    def __init__(self, app: ASGIApp, metrics: HttpMetrics) -> None:
        self.app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = time.monotonic()
        request_id = _request_id(scope)
        scope.setdefault("state", {})["request_id"] = request_id.decode()
        status = CLIENT_CLOSED_REQUEST

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                added = scope["state"].get(_RESPONSE_HEADERS, ())
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", request_id), *added]
            await send(message)

        try:
            await self.app(scope, receive, send_with_id)
        except Exception:
            logger.exception("request %s failed unexpectedly", request_id.decode())
            if status != CLIENT_CLOSED_REQUEST:
                raise  # the headers are out: the server must cut the connection
            await send_error(send_with_id, http_error(500, "internal error", code="internal_error"))
        finally:
            handler = getattr(scope.get("endpoint"), "path", "other")
            self._metrics.observe_http(handler, scope["method"], status, time.monotonic() - started)


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


def _request_id(scope: Scope) -> bytes:
    for name, value in scope["headers"]:
        if name == b"x-request-id" and is_request_id(value.decode("latin-1")):
            return bytes(value)
    return new_request_id().encode()
