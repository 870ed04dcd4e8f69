"""The end of the gateway processes' connections in the server's own process: one ROUTER on the event loop.

Like ``gateway.engine_connection``: ZeroMQ's file descriptor says "look", so all that is there is read each time.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec
import structlog
import zmq

from ipc.codec import decode_for_desk, encode
from ipc.config import TransportConfig
from ipc.desk import ToDesk, ToGatewayProcess
from ipc.transport import bind_router

log = structlog.get_logger("octavo")

_READABLE = int(zmq.POLLIN)


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
        self._loop, self._on_message = loop, on_message
        self._socket = bind_router(context, TransportConfig(endpoint=self.endpoint))
        self._file = self._socket.getsockopt(zmq.FD)
        assert isinstance(self._file, int)
        loop.add_reader(self._file, self._read_all)

    def send(self, identity: bytes, message: ToGatewayProcess) -> None:
        """Queue a message; never blocks. What is for a process that is gone concerns nobody."""
        try:
            self._socket.send_multipart((identity, encode(message)), zmq.NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
        self._loop.call_soon(self._read_all)  # sending may have taken the edge

    def close(self) -> None:
        """What is queued is sent by ZeroMQ until its context ends."""
        if not self._socket.closed:
            assert isinstance(self._file, int)
            self._loop.remove_reader(self._file)
            self._socket.close(linger=0)

    def _read_all(self) -> None:
        while not self._socket.closed and self._is_readable():
            identity, data = self._socket.recv_multipart(zmq.NOBLOCK)
            try:
                message = decode_for_desk(data)
            except msgspec.DecodeError as error:
                log.error("undecodable message dropped", error=str(error))
                continue
            try:
                self._on_message(identity, message)
            except BaseException:
                self._loop.call_soon(self._read_all)  # the loop reports it; the rest must be read all the same
                raise

    def _is_readable(self) -> bool:
        events = self._socket.get(zmq.EVENTS)
        assert isinstance(events, int)
        return bool(events & _READABLE)
