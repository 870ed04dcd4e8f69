"""The error envelope, in OpenAI's shape: ``{"error": {message, type, param, code}}``.

Owns how an exception of the error tree becomes a status, headers and a body. Knows no framework: routes
answer with it, streams send it as their one error event.
"""

import math
from dataclasses import dataclass, field

import msgspec

from ipc.errors import CapacityError, EngineError, OctavoError, RequestError

MAX_MESSAGE_CHARS = 1000
"""Longer messages are cut: a client's own text must not come back without bound."""

REQUEST_ERROR_HEADERS = {
    408: {"x-should-retry": "false"},  # OpenAI's clients would ask again, and whoever set the deadline does not wait
    413: {"Connection": "close"},
}

RETRY_AFTER_UNREADY = 5
"""Seconds that a client is told to wait while no engine is ready. An engine's start takes a few of these."""


class ErrorDetail(msgspec.Struct):
    """The inside of the envelope. ``param`` names the field at fault, ``code`` is machine-readable."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorResponse(msgspec.Struct):
    """The whole body of an answer that is not a success."""

    error: ErrorDetail


@dataclass(frozen=True, slots=True)
class HttpError:
    """What the client gets instead of a result."""

    status: int
    detail: ErrorDetail
    headers: dict[str, str] = field(default_factory=dict)

    def body(self) -> bytes:
        """The JSON body."""
        return msgspec.json.encode(ErrorResponse(self.detail))


def http_error(
    status: int,
    message: str,
    *,
    param: str | None = None,
    code: str | None = None,
    headers: dict[str, str] | None = None,
) -> HttpError:
    """An error with the type that OpenAI's clients expect for ``status``."""
    if len(message) > MAX_MESSAGE_CHARS:
        message = message[:MAX_MESSAGE_CHARS] + "..."
    return HttpError(status, ErrorDetail(message, _error_type(status), param, code), headers or {})


def from_exception(error: OctavoError) -> HttpError:
    """The answer for an error raised on purpose. Anything else in the tree is a 500 with its own message."""
    match error:
        case RequestError():
            headers = REQUEST_ERROR_HEADERS.get(error.status, {})
            return http_error(error.status, error.message, param=error.param, code=error.code, headers=headers)
        case CapacityError():
            retry = {"Retry-After": str(max(1, math.ceil(error.retry_after)))}
            return http_error(429, error.message, code="rate_limit_exceeded", headers=retry)
        case EngineError():
            headers = {"Retry-After": str(RETRY_AFTER_UNREADY)} if error.status == 503 else {}
            return http_error(error.status, error.message, code=error.code, headers=headers)
        case _:
            return http_error(500, str(error), code="internal_error")


def _error_type(status: int) -> str:
    if status == 429:
        return "rate_limit_error"
    if status == 408:
        return "timeout_error"
    return "invalid_request_error" if status < 500 else "server_error"
