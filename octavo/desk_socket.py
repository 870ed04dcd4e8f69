"""The end of the gateway processes' connections in the server's own process: one ROUTER on the event loop."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec
import structlog
import zmq

from gateway.socket_reader import SocketReader
from ipc.codec import decode_for_desk, encode
from ipc.config import TransportConfig
from ipc.desk import ToDesk, ToGatewayProcess
from ipc.transport import bind_router

log = structlog.get_logger("octavo")


class DeskSocket:
    """``on_message`` is told who sent what, on the loop."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        loop: asyncio.AbstractEventLoop,
        directory: Path,
        on_message: Callable[[bytes, ToDesk], None],
    ) -> None:
        self.endpoint = f"ipc://{directory}/desk.sock"
        self._on_message = on_message
        self._socket = bind_router(context, TransportConfig(endpoint=self.endpoint))
        self._reader = SocketReader(self._socket, loop, self._receive)
        self._reader.start()

    def send(self, identity: bytes, message: ToGatewayProcess) -> None:
        """Queue a message; never blocks. What is for a process that is gone concerns nobody."""
        try:
            self._socket.send_multipart((identity, encode(message)), zmq.NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
        self._reader.look()

    def close(self) -> None:
        """What ZeroMQ has not sent yet is dropped."""
        self._reader.close()

    def _receive(self, frames: list[bytes]) -> None:
        identity, data = frames
        try:
            message = decode_for_desk(data)
        except msgspec.DecodeError as error:
            log.error("undecodable message dropped", error=str(error))
            return
        self._on_message(identity, message)
