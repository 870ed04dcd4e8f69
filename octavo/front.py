"""The HTTP server around the gateway: binds first, answers "starting" at once, serves when there is an app."""

import asyncio
import contextlib
import errno
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.responses import JSON
from gateway.schema.errors import from_exception
from ipc.config import GatewayConfig
from ipc.errors import ConfigError, EngineError
from octavo.http_protocol import make_protocol

PATIENCE_SECONDS = 1.0
"""How long a response that is complete here may take to reach its client when the server ends."""


def bind(config: GatewayConfig) -> socket.socket:
    """The listening address, taken before anything is loaded. Raises ConfigError when it cannot be."""
    try:
        return _bind_uds(config.uds) if config.uds is not None else _bind_tcp(config.host, config.port)
    except socket.gaierror as error:
        raise ConfigError(f"--host {config.host}: {error.strerror}") from error
    except UnicodeError as error:  # what getaddrinfo raises for a name with an empty or an overlong part
        raise ConfigError(f"--host {config.host}: is no host name") from error
    except OSError as error:
        where = f"--uds {config.uds}" if config.uds is not None else f"--port {config.port} on {config.host}"
        reason = "is in use by another process" if error.errno == errno.EADDRINUSE else f"{error.strerror}"
        raise ConfigError(f"{where}: {reason}") from error


def _bind_tcp(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket(family, kind, protocol))
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(2048)
        stack.pop_all()
    return listener


def _bind_uds(uds: str) -> socket.socket:
    """A socket file that nobody listens on is what a killed server left behind: it is replaced."""
    path = Path(uds)
    if path.is_socket():
        with socket.socket(socket.AF_UNIX) as probe, contextlib.suppress(ConnectionRefusedError):
            probe.connect(uds)
            raise OSError(errno.EADDRINUSE, "in use")
        path.unlink()
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(uds)
        listener.listen(2048)
        stack.pop_all()
    return listener


def address(config: GatewayConfig, listener: socket.socket) -> str:
    """The URL that reaches the server from this machine."""
    scheme = "http" if config.ssl_certfile is None else "https"
    if config.uds is not None:
        return f"{scheme}://localhost"
    host, port = listener.getsockname()[:2]
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"{scheme}://{shown}:{port}"


class Front:
    """The ASGI application from the first second on: the gateway's once it is there; until then alive, not ready.

    ``phase``: what the server is doing until then, for people.
    """

    def __init__(self) -> None:
        self.app: ASGIApp | None = None
        self.phase = "beginning"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.app is not None:
            await self.app(scope, receive, send)
            return
        assert scope["type"] == "http"
        status, body, headers = 200, b'{"status":"alive"}', {}
        if scope["path"] != "/health/live":
            error = EngineError(f"the server is starting: {self.phase}", code="starting", status=503)
            answer = from_exception(error)
            status, body, headers = answer.status, answer.body(), answer.headers
        pairs = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        pairs += [(b"content-type", JSON.encode()), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": pairs})
        await send({"type": "http.response.body", "body": body})


class HttpServer(uvicorn.Server):
    """Uvicorn on a socket that is bound already, or on connections that are brought one by one (``adopt``). Signals are
    the supervisor's."""

    def __init__(
        self, front: Front, listener: socket.socket | None, gateway: GatewayConfig, tls: ssl.SSLContext | None = None
    ) -> None:
        config = uvicorn.Config(
            front,
            http=make_protocol(gateway.max_header_bytes, gateway.slow_client_timeout),
            ssl_context_factory=None if tls is None else lambda _config, _default: tls,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="warning",  # who starts and stops the server says so itself
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=5,
        )
        super().__init__(config)
        self._listeners = [] if listener is None else [listener]
        self._has_started = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """None are: see ``Supervisor``."""
        yield

    def start(self) -> "asyncio.Task[None]":
        """Serve until ``stop``."""
        self._task = asyncio.create_task(self.serve(self._listeners))
        return self._task

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Uvicorn's, and whoever waits for it hears of it."""
        await super().startup(sockets)
        self._has_started.set()

    async def adopt(self, connection: socket.socket) -> None:
        """Serve a connection that another process has accepted, once ``start`` has come so far."""
        await self._has_started.wait()
        config, loop = self.config, asyncio.get_running_loop()

        def make() -> asyncio.Protocol:
            return config.http_protocol_class(  # type: ignore[call-arg]
                config=config, server_state=self.server_state, app_state=self.lifespan.state
            )

        # A handshake that fails has closed the connection.
        with contextlib.suppress(OSError):
            await loop.connect_accepted_socket(make, connection, ssl=config.ssl)

    async def main_loop(self) -> None:
        """Until ``stop``. Uvicorn looks ten times a second whether it is to end; here it is told. What is left is the
        Date header, once a second."""
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), 1.0)

    async def stop(self) -> None:
        """Close the listener and let what is under way end; a client that keeps it waiting is cut off."""
        self.should_exit = True
        self._stopping.set()
        if self._task is None:
            return
        await asyncio.wait({self._task}, timeout=PATIENCE_SECONDS)
        # These have not sent all of their request, or do not read the response. To the application they have left.
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        await self._task
