"""A route as an ASGI application of its own: reads the body, ends quietly when the client has left."""

import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

from starlette.requests import ClientDisconnect, Request
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from gateway.disconnect import ClientDisconnected
from gateway.responses import send_body
from gateway.state import GatewayState
from gateway.visit import Visit


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request and the way back to its client. ``arrival_ns``: CLOCK_MONOTONIC, when its head was read.
    ``visit``: of a generating request that was let in."""

    state: GatewayState
    request: Request
    receive: Receive
    send: Send
    arrival_ns: int
    visit: Visit | None = None

    @property
    def admitted(self) -> Visit:
        """The visit of a request that is past admission."""
        assert self.visit is not None
        return self.visit

    async def reply(self, body: bytes) -> None:
        """A whole JSON response, 200."""
        await send_body(self.send, 200, body)


class Endpoint:
    """``handler`` under ``path``; ``path`` is also the label of its metrics."""

    def __init__(
        self, state: GatewayState, path: str, handler: Callable[[Exchange], Awaitable[None]], method: str
    ) -> None:
        self.path = path
        self._state, self._handler, self._method = state, handler, method

    def route(self) -> Route:
        """The entry of the routing table."""
        return Route(self.path, self, methods=[self._method])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(self._state, Request(scope, receive), receive, send, time.monotonic_ns())
        # Nobody is left to answer then; the request was aborted on the way out.
        with suppress(ClientDisconnected, ClientDisconnect):
            await self._handler(exchange)
