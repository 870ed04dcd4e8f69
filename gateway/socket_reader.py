"""A ZeroMQ socket on the event loop: no thread, no task, one callback a wake-up.

ZeroMQ's file descriptor is edge-triggered: it says "look", not "readable". So everything that is there is read
each time, and ``look`` is called after a send, too, which may have taken the edge.
"""

import asyncio
from collections.abc import Callable

import zmq

_READABLE = int(zmq.POLLIN)  # an enum's own & takes longer than all the rest of the question


class SocketReader:
    """``on_frames`` is called on the loop for each message, from ``start`` to ``close``."""

    def __init__(
        self,
        socket: zmq.Socket[bytes],
        loop: asyncio.AbstractEventLoop,
        on_frames: Callable[[list[bytes]], None],
    ) -> None:
        self._socket, self._loop, self._on_frames = socket, loop, on_frames
        file = socket.getsockopt(zmq.FD)
        assert isinstance(file, int)
        self._file = file

    def start(self) -> None:
        """Listen."""
        self._loop.add_reader(self._file, self._read_all)

    def look(self) -> None:
        """Soon, whether or not the descriptor says so."""
        self._loop.call_soon(self._read_all)

    def close(self) -> None:
        """The socket, too; what is queued in it is dropped. Told again, it does nothing."""
        if not self._socket.closed:
            self._loop.remove_reader(self._file)
            self._socket.close(linger=0)

    def _read_all(self) -> None:
        # Asked for each step of the engine: EVENTS costs a third of the exception that a vain ``recv`` raises.
        while not self._socket.closed and self._is_readable():
            frames = self._socket.recv_multipart(zmq.NOBLOCK)
            try:
                self._on_frames(frames)
            except BaseException:
                # The loop reports it. What is left to read must be read all the same, and nothing would say so again.
                self.look()
                raise

    def _is_readable(self) -> bool:
        events = self._socket.get(zmq.EVENTS)
        assert isinstance(events, int)
        return bool(events & _READABLE)
