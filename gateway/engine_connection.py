"""One engine incarnation's socket on the event loop: no thread, no task, one callback a wake-up.

ZeroMQ's file descriptor is edge-triggered: it says "look", not "readable". So everything that is there is read
each time, and also after a send, which may have taken the edge.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import structlog
import zmq

from ipc.codec import decode_for_gateway, encode
from ipc.config import TransportConfig
from ipc.desk import ToDesk
from ipc.errors import EngineError
from ipc.messages import PROTOCOL, Beat, Hello, Outputs, Ready, Stats
from ipc.transport import connect_dealer

log = structlog.get_logger("octavo.gateway")

_READABLE = int(zmq.POLLIN)  # an enum's own & takes longer than all the rest of the question


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
        self._loop = loop
        self._file = self._socket.getsockopt(zmq.FD)
        self._on_message: Callable[[Any], None] | None = None

    def start(self, on_message: Callable[[Any], None]) -> None:
        """Say hello; ``on_message`` is called on the loop for each message."""
        self._on_message = on_message
        assert isinstance(self._file, int)
        self._loop.add_reader(self._file, self._read_all)
        self.send(Hello(PROTOCOL))

    def send(self, message: ToDesk) -> None:
        """Queue a message; never blocks."""
        self._socket.send(encode(message), zmq.NOBLOCK)
        self._loop.call_soon(self._read_all)

    def close(self) -> None:
        """What is queued for the engine is dropped with it."""
        if not self._socket.closed:
            assert isinstance(self._file, int)
            self._loop.remove_reader(self._file)
            self._socket.close(linger=0)

    def _read_all(self) -> None:
        # Asked for each step of the engine: EVENTS costs a third of the exception that a vain ``recv`` raises.
        while not self._socket.closed and self._is_readable():
            data = self._socket.recv(zmq.NOBLOCK)
            try:
                message = self._decode(data)
            except msgspec.DecodeError as error:
                log.error("undecodable message dropped", error=str(error))
                continue
            if isinstance(message, Outputs | Ready | Beat | Stats) and message.incarnation != self._incarnation:
                continue
            if isinstance(message, Ready) and message.protocol != PROTOCOL:
                raise EngineError(f"the engine speaks protocol {message.protocol}, this gateway {PROTOCOL}")
            assert self._on_message is not None
            try:
                self._on_message(message)
            except BaseException:
                # The loop reports it. What is left to read must be read all the same, and nothing would say so again.
                self._loop.call_soon(self._read_all)
                raise

    def _is_readable(self) -> bool:
        events = self._socket.get(zmq.EVENTS)
        assert isinstance(events, int)
        return bool(events & _READABLE)
