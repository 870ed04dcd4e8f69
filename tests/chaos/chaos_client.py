"""One request over a plain socket, read to its end, and what it said in a form that two runs can be compared by."""

import asyncio
import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from e2e_process import ServerProcess

DONE = "[DONE]"
GROWING = ("text", "content", "arguments", "reasoning")
# How much of a prompt was in the cache, and how a call is called, is a matter of chance, whoever dies.
CHANCE = ("prompt_tokens_details", "id")


class BrokenResponse(Exception):
    """What came is no whole response."""


@dataclass(slots=True)
class Answer:
    """``events``: of a stream, in order, ``[DONE]`` as text; of another response its one body."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    events: list[Any] = field(default_factory=list)
    is_stream: bool = False

    @property
    def errors(self) -> list[Any]:
        """Error events, or the error."""
        return [event["error"] for event in self.events if event != DONE and "error" in event]

    def check_end(self) -> None:
        """It has exactly one end: each choice one reason, then ``[DONE]``, once and last."""
        assert self.status == 200, (self.status, self.events)
        assert not self.errors, self.errors
        if self.is_stream:
            assert self.events[-1] == DONE
            assert self.events.count(DONE) == 1
        choices = [choice for event in self.events if event != DONE for choice in event["choices"]]
        reasons = [choice["index"] for choice in choices if choice["finish_reason"] is not None]
        assert sorted(reasons) == sorted({choice["index"] for choice in choices})

    def outcome(self) -> Any:
        """All that was said, put together: the choices by index, and the usage."""
        choices: dict[int, dict[str, Any]] = {}
        usage: dict[str, Any] = {}
        for event in self.events:
            if event == DONE:
                continue
            for choice in event["choices"]:
                _merge(choices.setdefault(choice["index"], {}), choice)
            usage = event.get("usage") or usage
        return {"choices": choices, "usage": {key: usage[key] for key in usage if key not in CHANCE}}


def _merge(known: dict[str, Any], piece: dict[str, Any]) -> None:
    for key, value in piece.items():
        if key in CHANCE:
            continue
        if value is None:
            known.setdefault(key, None)
        elif known.get(key) is None:
            known[key] = {} if isinstance(value, dict) else [] if isinstance(value, list) else value
            if isinstance(value, dict):
                _merge(known[key], value)
            elif isinstance(value, list):
                _merge_lists(known[key], value)
        elif isinstance(value, dict):
            _merge(known[key], value)
        elif isinstance(value, list):
            _merge_lists(known[key], value)
        elif key in GROWING:
            known[key] += value
        else:
            known[key] = value


def _merge_lists(known: list[Any], pieces: list[Any]) -> None:
    """Tool calls are pieces of one with the same index, anything else goes on."""
    for piece in pieces:
        before = [one for one in known if isinstance(one, dict) and isinstance(piece, dict) and "index" in piece]
        same = [one for one in before if one.get("index") == piece["index"]]
        if same:
            _merge(same[0], piece)
        elif isinstance(piece, dict):
            known.append({})
            _merge(known[-1], piece)
        else:
            known.append(piece)


async def ask(
    server: ServerProcess,
    path: str,
    body: dict[str, Any] | bytes,
    on_event: Callable[[], None] = lambda: None,
) -> Answer:
    """The whole response. Raises BrokenResponse or OSError for one that is none; ``on_event`` is called for each event
    of a stream."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        writer.write(request_bytes(path, body))
        await writer.drain()
        return await _read(reader, on_event)
    except asyncio.IncompleteReadError as error:
        raise BrokenResponse(f"it ended after {error.partial[-200:]!r}") from error
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def request_bytes(path: str, body: dict[str, Any] | bytes) -> bytes:
    """A POST on a connection that ends with it."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    fields = f"Host: test\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\nConnection: close"
    return f"POST {path} HTTP/1.1\r\n{fields}\r\n\r\n".encode() + data


async def _read(reader: asyncio.StreamReader, on_event: Callable[[], None]) -> Answer:
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    pairs = (line.partition(":") for line in lines)
    answer = Answer(int(first.split()[1]), {name.strip().lower(): value.strip() for name, _, value in pairs})
    answer.is_stream = answer.headers.get("content-type", "").startswith("text/event-stream")
    if answer.headers.get("transfer-encoding") != "chunked":
        answer.events.append(json.loads(await reader.readexactly(int(answer.headers["content-length"]))))
    else:
        assert answer.is_stream
        while size := int(await reader.readuntil(b"\r\n"), 16):
            piece = (await reader.readexactly(size + 2))[:-2].decode()
            *blocks, rest = piece.split("\n\n")
            if rest:
                raise BrokenResponse(f"no whole event: {piece[-200:]!r}")
            for block in blocks:
                if block.startswith(":"):
                    continue  # a comment, so that nobody thinks that the server is gone
                text = block.removeprefix("data: ")
                answer.events.append(text if text == DONE else json.loads(text))
                on_event()
        await reader.readuntil(b"\r\n")
    if left := await reader.read():
        raise BrokenResponse(f"after the end: {left[:200]!r}")
    return answer
