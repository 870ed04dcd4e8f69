"""Sending: a whole JSON body or an error, straight over ASGI."""

from collections.abc import Mapping

from starlette.types import Send

from gateway.schema.errors import HttpError

JSON = "application/json"


async def send_body(
    send: Send, status: int, body: bytes, content_type: str = JSON, headers: Mapping[str, str] | None = None
) -> None:
    """A whole response."""
    fields = {"Content-Type": content_type, "Content-Length": str(len(body)), **(headers or {})}
    await send({"type": "http.response.start", "status": status, "headers": encode_headers(fields)})
    await send({"type": "http.response.body", "body": body})


async def send_error(send: Send, error: HttpError) -> None:
    """An error in OpenAI's shape."""
    await send_body(send, error.status, error.body(), headers=error.headers)


def encode_headers(fields: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    """Header fields as ASGI wants them."""
    return [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in fields.items()]
