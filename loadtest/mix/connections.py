"""Connections to one server that are kept for the next request, as clients of the API keep them."""

import http.client
from urllib.parse import urlsplit


class Connections:
    """Of the standard library, whose sockets locust makes cooperative: a request costs the client little."""

    def __init__(self, host: str) -> None:
        """``host`` is a base URL, with or without its ``/v1``. Raises ValueError for what is none."""
        parts = urlsplit(host)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"the host must be like http://127.0.0.1:8000, not {host!r}")
        self._kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._where = (parts.hostname, parts.port)
        path = parts.path.rstrip("/")
        self.path = path if path.endswith("/v1") else f"{path}/v1"
        self._idle: list[http.client.HTTPConnection] = []

    def take(self) -> tuple[http.client.HTTPConnection, bool]:
        """A connection, and whether it was used before: the server may have closed that one meanwhile."""
        if self._idle:
            return self._idle.pop(), True
        return self.new(), False

    def new(self) -> http.client.HTTPConnection:
        """One that nobody has used."""
        return self._kind(*self._where)

    def give(self, connection: http.client.HTTPConnection) -> None:
        """Back, after an answer that was read to its end."""
        if connection.sock is not None:
            self._idle.append(connection)

    def close(self) -> None:
        """All that are idle."""
        while self._idle:
            self._idle.pop().close()
