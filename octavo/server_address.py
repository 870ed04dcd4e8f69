"""The address of a server as a user types it, and connections to it, with the standard library."""

from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from urllib.parse import urlsplit


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """``url``: as it was typed; ``base``: the path before the API's own, without ``/v1``."""

    url: str
    host: str
    port: int | None
    is_secure: bool
    base: str

    @classmethod
    def parse(cls, url: str) -> "ServerAddress":
        """http or https, with or without /v1. Raises ValueError with one line for the user."""
        try:
            parts = urlsplit(url if "://" in url else f"http://{url}")
            port = parts.port
        except ValueError as error:
            raise ValueError(f"{url} is no address: {error}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url}: expected an address like http://127.0.0.1:8000")
        base = parts.path.rstrip("/").removesuffix("/v1")
        return cls(url, parts.hostname, port, parts.scheme == "https", base)

    def connection(self, timeout: float) -> HTTPConnection:
        """Not connected yet. Raises ValueError with one line for the user."""
        kind = HTTPSConnection if self.is_secure else HTTPConnection
        try:
            return kind(self.host, self.port, timeout=timeout)
        except HTTPException as error:
            raise ValueError(f"{self.url} is no address: {error}") from error


def error_text(error: object) -> str:
    """What an error in OpenAI's shape, or any other, says, on one line."""
    message = error.get("message") if isinstance(error, dict) else None
    return " ".join(str(message or error).split())


def reason(error: BaseException) -> str:
    """Why a connection failed, without Python's words around it."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
