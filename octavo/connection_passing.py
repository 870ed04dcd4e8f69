"""New connections dealt out to processes: accepted here, each handed on to the next process in turn.

Processes that accept from one listening socket themselves share the load as chance has it: whichever wakes first takes
all that wait. Dealt out they have equally many, and one that does not answer gets none.
"""

import asyncio
import contextlib
import errno
import socket
from collections.abc import Callable, Sequence

import structlog

AT_ONCE = 64  # connections accepted before anything else has its turn
PAUSE_SECONDS = 0.05
SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

log = structlog.get_logger("octavo")


def make_channel() -> tuple[socket.socket, socket.socket]:
    """(ours, theirs) for connections: whole messages, and neither end ever waits. Raises OSError."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    theirs.setblocking(False)
    return ours, theirs


class ConnectionDealer:
    """``channels``: to the processes that may get one now. While there are none, connections wait in the kernel."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        listener: socket.socket,
        channels: Callable[[], Sequence[socket.socket]],
    ) -> None:
        self._loop, self._listener, self._channels = loop, listener, channels
        self._next = 0
        self._is_listening = False
        self._pause: asyncio.TimerHandle | None = None
        self._held: socket.socket | None = None  # nobody could take it
        self._file = listener.fileno()
        listener.setblocking(False)

    def start(self) -> None:
        """Accept; asked again while it does, nothing happens."""
        if not self._is_listening:
            self._is_listening = True
            self._loop.add_reader(self._file, self._accept_some)

    def stop(self) -> None:
        """Accept none any more."""
        if self._is_listening:
            self._is_listening = False
            self._loop.remove_reader(self._file)
        if self._pause is not None:
            self._pause.cancel()

    def close(self) -> None:
        """For good."""
        self.stop()
        if self._held is not None:
            self._held.close()

    def deal(self, connection: socket.socket) -> bool:
        """Hand it on; whether anybody took it. Nobody has it here any more then."""
        channels = self._channels()
        for _ in channels:
            channel = channels[self._next % len(channels)]
            self._next += 1
            with contextlib.suppress(OSError):  # full, or its process is gone
                socket.send_fds(channel, [b"c"], [connection.fileno()])
                connection.close()
                return True
        return False

    def _accept_some(self) -> None:
        for _ in range(AT_ONCE):
            if self._held is not None:
                if not self.deal(self._held):
                    self._rest()
                    return
                self._held = None
            if not self._channels():
                self._rest()
                return
            try:
                self._held, _ = self._listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in SHORTAGES:
                    raise
                log.error("connections have to wait", reason=str(error))
                self._rest()
                return

    def _rest(self) -> None:
        self.stop()
        self._pause = self._loop.call_later(PAUSE_SECONDS, self.start)


def receive_connections(channel: socket.socket) -> list[socket.socket]:
    """All that are in the channel now."""
    connections: list[socket.socket] = []
    while True:
        try:
            data, files, flags, _ = socket.recv_fds(channel, 1, 1)
        except BlockingIOError:
            return connections
        if flags & socket.MSG_CTRUNC:
            log.error("a connection was dropped", reason="this process has no file descriptor for it")
        connections += [socket.socket(fileno=file) for file in files]
        if not data:
            return connections  # nobody sends any more
