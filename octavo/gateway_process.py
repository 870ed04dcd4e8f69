"""``python -m octavo.gateway_process``: one of several gateways of a server. Its configuration is the first line of
standard input, the rest of which is the death pipe.

Connections come to it through a channel, the engine and the desk are behind one socket of the server's own process.
Signals are that process's to answer.
"""

import asyncio
import signal
import socket
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import msgspec
import structlog
import uvloop
import zmq

from gateway.engine_client import EngineClient
from gateway.engine_connection import EngineConnection
from gateway.remote_desk import RemoteDesk
from gateway.tenants import Tenants
from ipc.codec import decode_for_gateway_process
from ipc.config import TransportConfig
from ipc.desk import (
    Answer,
    Close,
    Collect,
    Entered,
    Load,
    Outage,
    Phase,
    Report,
    Serving,
    Stop,
    ToDesk,
    ToGatewayProcess,
    TurnedAway,
    Unusable,
)
from ipc.errors import ConfigError, EngineError
from ipc.messages import Ready, Stats, ToGateway
from ipc.parent import die_with_parent, watch_parent
from observability.logging import configure
from observability.metrics import Metrics
from octavo.connection_passing import receive_connections
from octavo.front import Front, HttpServer
from octavo.options import ServeConfig
from octavo.pulse import Pulse
from octavo.start_up import in_daemon_thread
from octavo.tls import make_tls

REPORT_SECONDS = 0.5
FROM_ENGINE = get_args(ToGateway)

log = structlog.get_logger("octavo.gateway")

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from octavo.telemetry import Telemetry


class GatewayProcessConfig(msgspec.Struct, frozen=True, kw_only=True):
    """``endpoint``: of the desk; ``channel``: file descriptor through which connections come."""

    serve: ServeConfig
    endpoint: str
    identity: str
    channel: int


class GatewayProcess:
    """One gateway's life."""

    def __init__(self, config: GatewayProcessConfig) -> None:
        self._config, gateway = config, config.serve.gateway
        self._loop = asyncio.get_running_loop()
        self._front = Front()
        self._server = HttpServer(self._front, None, gateway, make_tls(gateway))
        self._channel = socket.socket(fileno=config.channel)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._metrics = Metrics(config.serve.observability.metrics_prefix, model_name=config.serve.model_names[0])
        self._telemetry: Telemetry | None = None
        self._tenants = Tenants(config.serve.tenants, gateway.api_key)
        self._client = EngineClient(self._loop, _ignore, _ignore)
        self._desk = RemoteDesk(self._loop, self.send)
        self._connection = EngineConnection(
            self._context,
            TransportConfig(endpoint=config.endpoint),
            self._loop,
            identity=config.identity,
            decode=decode_for_gateway_process,
        )
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopped = asyncio.Event()

    async def run(self) -> None:
        """Until the server says stop."""
        serving, pulse = self._server.start(), Pulse(self._server, self._metrics)
        stopped = asyncio.create_task(self._stopped.wait())
        self._client.connect(self)
        self._loop.add_reader(self._channel, self._take_connections)
        while not stopped.done():
            self.send(Report(0, self._metrics.cell_values()))
            await asyncio.wait((stopped, serving), timeout=REPORT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if serving.done():
                serving.result()
                raise RuntimeError("the HTTP server ended")
        self._loop.remove_reader(self._channel)
        error = EngineError("the server is shutting down", code="shutting_down", status=503)
        self._client.disconnect(error)
        self._desk.disconnect(error)
        await self._server.stop()
        pulse.stop()
        if self._telemetry is not None:
            await in_daemon_thread(self._telemetry.shutdown)
        self._context.destroy(linger=0)

    # ---- the client's connection: what is not of the engine is for here

    def start(self, on_message: Callable[[ToGateway], None]) -> None:
        """See ``gateway.engine_client.Connection``."""

        def receive(message: ToGatewayProcess) -> None:
            if isinstance(message, FROM_ENGINE):
                on_message(message)
            else:
                self._receive(message)

        self._connection.start(receive)

    def send(self, message: ToDesk) -> None:
        """See ``gateway.engine_client.Connection``."""
        self._connection.send(message)

    def close(self) -> None:
        """See ``gateway.engine_client.Connection``."""
        self._connection.close()

    def _receive(self, message: ToGatewayProcess) -> None:
        match message:
            case Answer() | Entered() | TurnedAway() | Outage() | Close():
                self._desk.receive(message)
            case Collect():
                self.send(Report(message.number, self._metrics.cell_values()))
            case Phase():
                self._front.phase = message.text
            case Load():
                self._begin(self._load(Path(message.folder)))
            case Stop():
                self._stopped.set()

    async def _load(self, folder: Path) -> None:
        try:
            self._front.app = await in_daemon_thread(lambda: self._make(folder))
        except ConfigError as error:
            self.send(Unusable(str(error)))
        else:
            self.send(Serving())

    def _make(self, folder: Path) -> "ASGIApp":
        from octavo.gateway_parts import make_gateway
        from octavo.telemetry import Telemetry

        config = self._config.serve
        telemetry = self._telemetry = Telemetry.of(config.observability)
        return make_gateway(config, folder, self._client, self._desk, self._tenants, self._metrics, telemetry)

    def _take_connections(self) -> None:
        for connection in receive_connections(self._channel):
            self._begin(self._server.adopt(connection))

    def _begin(self, work: "Coroutine[None, None, None]") -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _ignore(message: Stats | Ready) -> None:
    """The server's own process has it, too."""


def main() -> None:
    """Ends the process: with 0 when told to stop."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    die_with_parent(sys.stdin.buffer)
    config = msgspec.json.decode(sys.stdin.buffer.readline(), type=GatewayProcessConfig)
    watch_parent(sys.stdin.buffer)
    configure(config.serve.gateway.log_level, json=config.serve.observability.log_format == "json")

    async def run() -> None:
        await GatewayProcess(config).run()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


if __name__ == "__main__":
    main()
