"""API keys: every path needs one but the health probes and the page's files, by default and not by list of the guarded.

The path is compared as it arrived: a variant such as ``//v1/models`` or ``/health/../v1/models`` is not on the
list and needs the key. Whose key it is goes along as ``scope["state"]["tenant"]``; keys appear in no message.
"""

from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.page_files import page_files
from gateway.responses import send_error
from gateway.schema.errors import HttpError, http_error
from gateway.tenants import Tenant, Tenants
from ipc.config import Scope as KeyScope

OPEN_PATHS = frozenset({"/health", "/health/live", "/health/ready", *page_files()})
METRICS_PATH = "/metrics"
ADMIN_PREFIXES = ("/admin", "/debug")


class ApiKeyMiddleware:
    """Answers 401 in OpenAI's shape unless ``Authorization: Bearer`` holds one of the keys, and 403 unless the key has
    the path's scope.

    A CORS preflight (OPTIONS) cannot carry a key and reaches no handler, so it passes.
    """

    def __init__(self, app: ASGIApp, tenants: Tenants) -> None:
        self.app, self._tenants = app, tenants

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            tenant = self._tenant(scope)
            error = None if tenant is not None else _no_key()
            if tenant is not None and (needed := scope_of(scope["path"])) not in tenant.scopes:
                error = http_error(403, f"this API key does not have the scope {needed}", code="insufficient_scope")
            if error is not None:
                await send_error(send, error)
                return
            scope.setdefault("state", {})["tenant"] = tenant
        elif scope["type"] != "lifespan":
            await send({"type": "websocket.close", "code": 1008, "reason": ""})
            return
        await self.app(scope, receive, send)

    def _tenant(self, scope: Scope) -> Tenant | None:
        tenants = self._tenants
        if not tenants.needs_key or scope["path"] in OPEN_PATHS or scope["method"] == "OPTIONS":
            return tenants.default
        values = [value for name, value in scope["headers"] if name == b"authorization"]
        if len(values) != 1:
            return None
        scheme, _, key = values[0].partition(b" ")
        return tenants.find(key.strip(b" ")) if scheme.lower() == b"bearer" else None


def scope_of(path: str) -> KeyScope:
    """Which of a key's scopes a path needs."""
    if path == METRICS_PATH:
        return "metrics"
    is_admin = any(path == prefix or path.startswith(prefix + "/") for prefix in ADMIN_PREFIXES)
    return "admin" if is_admin else "inference"


def _no_key() -> HttpError:
    return http_error(
        401,
        "a valid API key is needed: Authorization: Bearer KEY",
        code="invalid_api_key",
        headers={"WWW-Authenticate": "Bearer"},
    )
