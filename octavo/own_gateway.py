"""The gateway in the server's own process: one event loop for HTTP and for the engine's outputs."""

import asyncio
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from gateway.desk import FrontDesk, LocalDesk
from gateway.engine_client import EngineClient
from ipc.messages import Ready
from observability.metrics import Metrics
from octavo.front import Front, HttpServer
from octavo.options import ServeConfig
from octavo.pulse import Pulse
from octavo.start_up import in_daemon_thread
from octavo.tls import make_tls

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from octavo.telemetry import Telemetry


class Gateway(Protocol):
    """The HTTP side of a server, in whichever processes."""

    def start(self) -> "asyncio.Task[None]":
        """Answer on the port from now on: alive, not ready. The task ends when that cannot go on, or after ``stop``."""

    def begin(self, phase: str) -> None:
        """What the server is doing until it is ready."""

    async def load(self, folder: Path) -> None:
        """Know the model's text. Raises ConfigError."""

    def be_ready(self, ready: Ready) -> None:
        """An engine serves, the first one or one in another's place."""

    def close(self) -> None:
        """The desk takes no new requests."""

    async def stop(self) -> None:
        """Close the port; what is complete still reaches its client."""


class OwnGateway:
    """Raises ConfigError for a certificate that does not work."""

    def __init__(
        self, config: ServeConfig, listener: socket.socket, client: EngineClient, desk: FrontDesk, metrics: Metrics
    ) -> None:
        self._config, self._client, self._desk, self._metrics = config, client, desk, metrics
        self._telemetry: Telemetry | None = None
        self._front = Front()
        self._server = HttpServer(self._front, listener, config.gateway, make_tls(config.gateway))

    def start(self) -> "asyncio.Task[None]":
        """See ``Gateway``."""
        self._pulse = Pulse(self._server, self._metrics)
        return self._server.start()

    def begin(self, phase: str) -> None:
        """See ``Gateway``."""
        self._front.phase = phase

    async def load(self, folder: Path) -> None:
        """See ``Gateway``."""
        self._front.app = await in_daemon_thread(lambda: self._make(folder))

    def _make(self, folder: Path) -> "ASGIApp":
        # Imported while the engine, which takes longer, is starting.
        from octavo.gateway_parts import make_gateway
        from octavo.telemetry import Telemetry

        desk = self._desk
        telemetry = self._telemetry = Telemetry.of(self._config.observability)
        return make_gateway(self._config, folder, self._client, LocalDesk(desk), desk.tenants, self._metrics, telemetry)

    def be_ready(self, ready: Ready) -> None:
        """The client has heard it."""

    def close(self) -> None:
        """The desk is asked."""

    async def stop(self) -> None:
        """See ``Gateway``."""
        self._pulse.stop()
        await self._server.stop()
        if self._telemetry is not None:
            await in_daemon_thread(self._telemetry.shutdown)
