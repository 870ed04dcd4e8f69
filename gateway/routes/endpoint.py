"""A route as an ASGI application of its own: reads the body, ends quietly when the client has left."""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from starlette.requests import ClientDisconnect, Request
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from gateway.disconnect import ClientDisconnected
from gateway.middleware import trace_of
from gateway.responses import send_body
from gateway.state import GatewayState
from gateway.visit import Visit
from observability.http_trace import HttpTrace, SilentExchange


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request and the way back to its client. ``arrival_ns``: CLOCK_MONOTONIC, when its head was read.
    ``visit``: of a generating request that was let in. ``trace``: of the exchange."""

    state: GatewayState
    request: Request
    receive: Receive
    send: Send
    arrival_ns: int
    visit: Visit | None = None
    trace: HttpTrace = SilentExchange()

    @property
    def admitted(self) -> Visit:
        """The visit of a request that is past admission."""
        assert self.visit is not None
        return self.visit

    @property
    def server(self) -> tuple[str, int | None] | None:
        """The address and port that it came to, or the path of a socket."""
        server = self.request.scope.get("server")
        return None if server is None else (str(server[0]), server[1])

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
        trace = trace_of(scope)
        exchange = Exchange(self._state, Request(scope, receive), receive, send, time.monotonic_ns(), trace=trace)
        try:
            await self._handler(exchange)
        except (ClientDisconnected, ClientDisconnect):
            # Nobody is left to answer; the request was aborted on the way out.
            trace.fail("abort", "the client closed the connection")
