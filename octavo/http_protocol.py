"""HTTP/1.1 on a connection, with what uvicorn leaves open: how long a request's head may be, in bytes and in seconds,
and how long a client may leave a response unread. What cannot be read is answered as JSON, like every other error.
"""

import asyncio
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gateway.responses import JSON
from gateway.schema.errors import http_error

HEAD_SECONDS = 30.0
"""In which a connection must have sent the head of its first request, and each request once it has begun."""


def make_protocol(max_head_bytes: int, unread_seconds: float) -> type[HttpToolsProtocol]:
    """The protocol class for a server whose requests' heads have at most so many bytes, and which closes a connection
    whose client has read nothing for so long while there was something to read."""
    return type("HttpProtocol", (HttpProtocol,), {"max_head_bytes": max_head_bytes, "unread_seconds": unread_seconds})


class HttpProtocol(HttpToolsProtocol):
    """One connection."""

    max_head_bytes: int
    unread_seconds: float
    _unread: asyncio.TimerHandle | None = None
    _num_head_bytes = 0
    _is_in_head = True
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """A client that says nothing has so long as one that says half."""
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nobody waits any more."""
        self._stop_waiting()
        self._was_read()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Heads are counted as they come, since the parser keeps all of one before it says anything of it."""
        super().data_received(data)
        if self._is_in_head and not self.transport.is_closing():
            self._num_head_bytes += len(data)
            if self._num_head_bytes > self.max_head_bytes:
                self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, self._too_long)

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self._is_in_head, self._num_head_bytes = True, 0
        if self._deadline is None:
            self._await_head()

    def on_headers_complete(self) -> None:
        """The head is there, all in one piece perhaps."""
        self._is_in_head = False
        self._stop_waiting()
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if size > self.max_head_bytes:
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, self._too_long)
            return
        super().on_headers_complete()

    def pause_writing(self) -> None:
        """The buffers to the client are full. To the application a client that leaves them so has left."""
        super().pause_writing()
        self._was_read()
        self._unread = self.loop.call_later(self.unread_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """It reads, however slowly."""
        self._was_read()
        super().resume_writing()

    def _was_read(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def send_400_response(self, msg: str) -> None:
        """What is no HTTP."""
        if not self.transport.is_closing():  # else it was refused for what it is
            self._refuse(HTTPStatus.BAD_REQUEST, "the request is not valid HTTP")

    @property
    def _too_long(self) -> str:
        return f"the request's line and headers have more than {self.max_head_bytes} bytes"

    def _await_head(self) -> None:
        self._deadline = self.loop.call_later(HEAD_SECONDS, self._give_up)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        self._deadline = None
        if not self.transport.is_closing():
            self._refuse(HTTPStatus.REQUEST_TIMEOUT, f"the request's head took longer than {HEAD_SECONDS:.0f} s")

    def _refuse(self, status: HTTPStatus, message: str) -> None:
        body = http_error(status, message).body()
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: {JSON}\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()
