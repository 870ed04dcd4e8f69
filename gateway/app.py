"""The ASGI application: which path leads where, and what lies around the routes. No logic of its own."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from gateway.auth import ApiKeyMiddleware
from gateway.middleware import BodyLimitMiddleware, ExchangeMiddleware
from gateway.page_files import page_files
from gateway.responses import JSON
from gateway.routes import admin, chat_completions, completions, debug, drain, health, models, page, profile, tokenize
from gateway.routes.admitted import admitted
from gateway.routes.endpoint import Endpoint
from gateway.schema.errors import from_exception, http_error
from gateway.schema.resolve import COMPLETION_MAX_TOKENS
from gateway.state import GatewayState
from ipc.config import GatewayConfig
from ipc.errors import OctavoError

Lifespan = Callable[[Any], AbstractAsyncContextManager[None]]


def create_app(state: GatewayState, lifespan: Lifespan | None = None) -> ASGIApp:
    """The gateway over ``state``. ``lifespan`` is the starter's own start-up and shutdown."""
    app = Starlette(
        routes=[
            Endpoint(state, "/v1/chat/completions", admitted(chat_completions.create), "POST").route(),
            Endpoint(state, "/v1/completions", admitted(completions.create, COMPLETION_MAX_TOKENS), "POST").route(),
            Endpoint(state, "/v1/models", models.list_models, "GET").route(),
            Endpoint(state, "/v1/models/{model:path}", models.get_model, "GET").route(),
            Endpoint(state, "/tokenize", tokenize.tokenize, "POST").route(),
            Endpoint(state, "/detokenize", tokenize.detokenize, "POST").route(),
            Endpoint(state, "/health", health.ready, "GET").route(),
            Endpoint(state, "/health/live", health.live, "GET").route(),
            Endpoint(state, "/health/ready", health.ready, "GET").route(),
            Endpoint(state, "/metrics", health.metrics, "GET").route(),
            Endpoint(state, "/admin/usage", admin.usage, "GET").route(),
            Endpoint(state, "/admin/drain", drain.drain, "POST").route(),
            Endpoint(state, "/admin/profile/start", profile.start, "POST").route(),
            Endpoint(state, "/admin/profile/stop", profile.stop, "POST").route(),
            Endpoint(state, "/debug/requests", debug.requests, "GET").route(),
            Endpoint(state, "/version", health.version, "GET").route(),
            *(Endpoint(state, path, page.page, "GET").route() for path in page_files()),
        ],
        middleware=[
            *cors(state.config),
            Middleware(ExchangeMiddleware, metrics=state.metrics, tracing=state.tracing),
            Middleware(ApiKeyMiddleware, tenants=state.tenants),
            Middleware(BodyLimitMiddleware, limit=state.config.max_request_bytes),
        ],
        exception_handlers={HTTPException: _http_exception, OctavoError: _octavo_error},
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    return app


def cors(config: GatewayConfig) -> list[Middleware]:
    """Nothing unless pages of other origins may call."""
    if not config.allowed_origins:
        return []
    return [
        Middleware(
            CORSMiddleware,
            allow_origins=config.allowed_origins,
            allow_methods=config.allowed_methods,
            allow_headers=config.allowed_headers,
            allow_credentials=config.allow_credentials,
            expose_headers=("retry-after", "x-request-id"),
        )
    ]


async def _http_exception(request: Request, error: Exception) -> Response:
    """The router's own errors: 404 and 405, in OpenAI's shape. A preflight learns which methods there are."""
    assert isinstance(error, HTTPException)
    headers = dict(error.headers or {})
    if error.status_code == 405 and request.method == "OPTIONS":
        return Response(status_code=204, headers=headers)
    message = "no such path" if error.status_code == 404 else str(error.detail)
    body = http_error(error.status_code, message).body()
    return Response(body, error.status_code, headers, JSON)


async def _octavo_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, OctavoError)
    answer = from_exception(error)
    return Response(answer.body(), answer.status, answer.headers, JSON)
