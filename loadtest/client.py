"""One streamed completion over a plain socket, with the times that a user would see.

Sockets and bytes only: a client that costs little leaves the cores to the server that it measures.
"""

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from urllib.parse import urlsplit


@dataclass(slots=True)
class Completion:
    """``started``, ``ended`` and ``event_times``, one for each event with text, in seconds of ``time.perf_counter``;
    ``error``: what went wrong, empty if nothing."""

    num_tokens: int = 0
    started: float = 0.0
    ended: float = 0.0
    event_times: list[float] = field(default_factory=list)
    error: str = ""

    @property
    def first_token(self) -> float:
        """Seconds until the first event; 0 if there was none."""
        return self.event_times[0] - self.started if self.event_times else 0.0

    @property
    def seconds(self) -> float:
        """From the start to the end of the stream."""
        return self.ended - self.started

    @property
    def gaps(self) -> list[float]:
        """Seconds between events."""
        return self.gaps_between(self.started, self.ended)

    def gaps_between(self, first: float, last: float) -> list[float]:
        """Those that lie between two times as a whole."""
        times = [time for time in self.event_times if first <= time <= last]
        return [after - before for before, after in pairwise(times)]


async def complete(
    url: str, body: dict[str, object], api_key: str | None = None, on_first: Callable[[], None] | None = None
) -> Completion:
    """POST ``body`` to ``url``/v1/completions with stream and usage; the tokens counted are the server's.
    ``on_first`` is called with the first event."""
    parts = urlsplit(url)
    data = json.dumps({**body, "stream": True, "stream_options": {"include_usage": True}}).encode()
    key = f"Authorization: Bearer {api_key}\r\n" if api_key else ""
    head = (
        f"POST {parts.path}/v1/completions HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: application/json\r\n"
        f"{key}Content-Length: {len(data)}\r\nConnection: close\r\n\r\n"
    )
    result = Completion(started=time.perf_counter())
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port or 80, limit=2**20)
    try:
        writer.write(head.encode() + data)
        status = await reader.readline()
        if b" 200 " not in status:
            result.error = (await reader.read(2000)).decode(errors="replace")[-300:]
        else:
            await _read_events(reader, result, on_first)
    finally:
        writer.close()
    return result


async def _read_events(reader: asyncio.StreamReader, result: Completion, on_first: Callable[[], None] | None) -> None:
    while line := await reader.readline():
        if not line.startswith(b"data: {"):
            continue
        now = time.perf_counter()
        if b'"usage":{' in line:
            result.num_tokens = json.loads(line[6:])["usage"]["completion_tokens"]
        elif b'"error"' in line:
            result.error = line.decode(errors="replace")[:300]
        else:
            result.event_times.append(now)
            if on_first is not None and len(result.event_times) == 1:
                on_first()
    result.ended = time.perf_counter()
    if not result.num_tokens and not result.error:
        result.error = "the stream ended without usage"
