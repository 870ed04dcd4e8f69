"""One engine incarnation's socket on the event loop: no thread, no task, one callback a wake-up."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import structlog
import zmq

from gateway.socket_reader import SocketReader
from ipc.codec import decode_for_gateway, encode
from ipc.config import TransportConfig
from ipc.desk import ToDesk
from ipc.errors import EngineError
from ipc.messages import PROTOCOL, Beat, Hello, Outputs, Ready, Stats
from ipc.transport import connect_dealer

log = structlog.get_logger("octavo.gateway")


class EngineConnection:
    """A DEALER on one incarnation. Messages of another incarnation are dropped. ``identity``: by which the other side
    knows this one; ``decode``: for a peer that says more than an engine does."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        config: TransportConfig,
        loop: asyncio.AbstractEventLoop,
        client_keys: tuple[str, str] | None = None,
        identity: str | None = None,
        decode: Callable[[bytes], Any] = decode_for_gateway,
    ) -> None:
        self._incarnation, self._decode = config.incarnation, decode
        self._socket = connect_dealer(context, config, client_keys, identity)
        self._reader = SocketReader(self._socket, loop, self._receive)
        self._on_message: Callable[[Any], None] | None = None

    def start(self, on_message: Callable[[Any], None]) -> None:
        """Say hello; ``on_message`` is called on the loop for each message."""
        self._on_message = on_message
        self._reader.start()
        self.send(Hello(PROTOCOL))

    def send(self, message: ToDesk) -> None:
        """Queue a message; never blocks."""
        self._socket.send(encode(message), zmq.NOBLOCK)
        self._reader.look()

    def close(self) -> None:
        """What is queued for the engine is dropped with it."""
        self._reader.close()

    def _receive(self, frames: list[bytes]) -> None:
        try:
            message = self._decode(b"".join(frames))
        except msgspec.DecodeError as error:
            log.error("undecodable message dropped", error=str(error))
            return
        if isinstance(message, Outputs | Ready | Beat | Stats) and message.incarnation != self._incarnation:
            return
        if isinstance(message, Ready) and message.protocol != PROTOCOL:
            raise EngineError(f"the engine speaks protocol {message.protocol}, this gateway {PROTOCOL}")
        assert self._on_message is not None
        self._on_message(message)
