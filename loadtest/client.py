"""One streamed completion over a plain socket, with the times that a user would see.

Sockets and bytes only: a client that costs little leaves the cores to the server that it measures.
"""

import asyncio
import json
import time
from dataclasses import dataclass, field
from urllib.parse import urlsplit


@dataclass(slots=True)
class Completion:
    """Times in seconds. ``gaps``: between events after the first; ``error``: what went wrong, empty if nothing."""

    num_tokens: int = 0
    first_token: float = 0.0
    seconds: float = 0.0
    gaps: list[float] = field(default_factory=list)
    error: str = ""


async def complete(url: str, body: dict[str, object], api_key: str | None = None) -> Completion:
    """POST ``body`` to ``url``/v1/completions with stream and usage; the tokens counted are the server's."""
    parts = urlsplit(url)
    data = json.dumps({**body, "stream": True, "stream_options": {"include_usage": True}}).encode()
    key = f"Authorization: Bearer {api_key}\r\n" if api_key else ""
    head = (
        f"POST {parts.path}/v1/completions HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: application/json\r\n"
        f"{key}Content-Length: {len(data)}\r\nConnection: close\r\n\r\n"
    )
    started = time.perf_counter()
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port or 80, limit=2**20)
    try:
        writer.write(head.encode() + data)
        status = await reader.readline()
        if b" 200 " not in status:
            return Completion(error=(await reader.read(2000)).decode(errors="replace")[-300:])
        return await _read_events(reader, started)
    finally:
        writer.close()


async def _read_events(reader: asyncio.StreamReader, started: float) -> Completion:
    result, last = Completion(), started
    while line := await reader.readline():
        if not line.startswith(b"data: {"):
            continue
        now = time.perf_counter()
        if b'"usage":{' in line:
            result.num_tokens = json.loads(line[6:])["usage"]["completion_tokens"]
        elif b'"error"' in line:
            result.error = line.decode(errors="replace")[:300]
        elif result.first_token:
            result.gaps.append(now - last)
        else:
            result.first_token = now - started
        last = now
    result.seconds = time.perf_counter() - started
    if not result.num_tokens and not result.error:
        result.error = "the stream ended without usage"
    return result
