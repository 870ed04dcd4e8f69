"""API keys: every path needs one but the health probes, by default and not by list of the guarded.

The path is compared as it arrived: a variant such as ``//v1/models`` or ``/health/../v1/models`` is not on the
list and needs the key. Keys are kept and compared as digests, in constant time, and appear in no message.
"""

import hashlib
import secrets
from collections.abc import Iterable

from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.responses import send_error
from gateway.schema.errors import http_error

OPEN_PATHS = frozenset({"/health", "/health/live", "/health/ready"})


class ApiKeyMiddleware:
    """Answers 401 in OpenAI's shape unless ``Authorization: Bearer`` holds one of the keys.

    A CORS preflight (OPTIONS) cannot carry a key and reaches no handler, so it passes.
    """

    def __init__(self, app: ASGIApp, keys: Iterable[str]) -> None:
        self.app = app
        self._digests = tuple(_digest(key.encode()) for key in keys)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or (scope["type"] == "http" and self._is_allowed(scope)):
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            error = http_error(
                401,
                "a valid API key is needed: Authorization: Bearer KEY",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
            await send_error(send, error)
        else:
            await send({"type": "websocket.close", "code": 1008, "reason": ""})

    def _is_allowed(self, scope: Scope) -> bool:
        if not self._digests or scope["path"] in OPEN_PATHS or scope["method"] == "OPTIONS":
            return True
        values = [value for name, value in scope["headers"] if name == b"authorization"]
        if len(values) != 1:
            return False
        scheme, _, key = values[0].partition(b" ")
        if scheme.lower() != b"bearer":
            return False
        digest = _digest(key.strip(b" "))
        # Every key is compared, so that the time does not tell which one was close.
        matches = [secrets.compare_digest(digest, known) for known in self._digests]
        return any(matches)


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
