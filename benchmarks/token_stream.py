"""One streamed completion with its tokens, their logprobs and when each came, as far as it has come."""

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit


@dataclass(slots=True)
class TokenStream:
    """``times``: of each token, in seconds of ``time.perf_counter``. ``error``: what went wrong, empty if nothing."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    error: str = ""

    def num_before(self, moment: float) -> int:
        """Tokens that had come by then."""
        return sum(when <= moment for when in self.times)

    def take(self, event: dict[str, Any], now: float) -> None:
        """One event of the stream."""
        if "error" in event:
            self.error = event["error"]["message"]
        for choice in event.get("choices", ()):
            token_ids = choice.get("token_ids") or []
            self.token_ids += token_ids
            self.times += [now] * len(token_ids)
            if choice.get("logprobs"):
                self.logprobs += choice["logprobs"]["token_logprobs"]


async def read_stream(url: str, body: dict[str, Any], stream: TokenStream) -> None:
    """POST ``body`` to ``url``/v1/completions and fill ``stream`` until it ends, well or not."""
    parts = urlsplit(url)
    data = json.dumps({**body, "stream": True, "return_token_ids": True}).encode()
    head = (
        f"POST {parts.path}/v1/completions HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(data)}\r\nConnection: close\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port or 80, limit=2**20)
    try:
        writer.write(head.encode() + data)
        status = await reader.readline()
        if b" 200 " not in status:
            stream.error = (await reader.read(2000)).decode(errors="replace")[-300:]
            return
        is_done = False
        while line := await reader.readline():
            if line.startswith(b"data: {"):
                stream.take(json.loads(line[6:]), time.perf_counter())
            is_done = is_done or line.startswith(b"data: [DONE]")
        if not is_done and not stream.error:
            stream.error = "the stream ended without [DONE]"
    except OSError as error:
        stream.error = str(error) or type(error).__name__
    finally:
        writer.close()
