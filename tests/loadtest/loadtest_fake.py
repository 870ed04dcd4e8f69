"""A server of the API whose every delay is known, in a thread of its own, and what it saw of its clients."""

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

FORM = '{"subject": "travel", "urgency": "low", "is_question": true, "people": 2}'


@dataclass
class Fake:
    """What is set before a run, and what was seen after it. Times in seconds."""

    ttft: float = 0.0
    itl: float = 0.0
    num_tokens: int = 5
    num_refusals: int = 0  # of the first requests
    retry_after: str = "1"
    status: int = 200  # other than 200: of every request
    error: str = "the server's own words"
    has_usage: bool = True
    ends_early: bool = False
    breaks: bool = False  # an error event after the first token
    is_stream: bool = True
    form: str = FORM
    closes_idle: bool = False
    url: str = ""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    arrivals: list[float] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)  # as they really were, to the first token
    gaps: list[float] = field(default_factory=list)
    num_connections: int = 0
    num_gone: int = 0  # clients that went away within an answer

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        # At the end of a test the task is cancelled; streams of asyncio complain of tasks that end so.
        with contextlib.suppress(asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            while True:
                await self.answer(reader, writer)
                if self.closes_idle:
                    break
        writer.transport.abort()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        fields = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if line)
        if head.startswith("GET /v1/models"):
            send(writer, 200, json.dumps({"data": [{"id": "first"}, {"id": "second"}]}))
            return
        assert head.startswith("POST /v1/chat/completions"), head
        body = json.loads(await reader.readexactly(int(fields["content-length"])))
        self.bodies.append(body)
        self.keys.append(fields.get("authorization", ""))
        self.arrivals.append(time.perf_counter())
        if self.num_refusals:
            self.num_refusals -= 1
            told = f"Retry-After: {self.retry_after}\r\n" if self.retry_after else ""
            send(writer, 429, json.dumps({"error": {"message": "come again"}}), told)
        elif self.status != 200:
            send(writer, self.status, json.dumps({"error": {"message": self.error}}))
        elif not self.is_stream:
            send(writer, 200, "{}")
        else:
            try:
                await self.stream(body, reader, writer)
            except ConnectionError:
                self.num_gone += 1
                raise

    async def stream(self, body: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        began = last = time.perf_counter()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        choices = range(body.get("n", 1))
        for index in choices:
            await event(writer, choice(index, {"role": "assistant", "content": ""}))
        for number in range(self.num_tokens):
            await pause(self.itl if number else self.ttft, reader)
            text = f"word{number} "
            if "response_format" in body:
                text = self.form if number == 0 else ""
            for index in choices:
                await event(writer, choice(index, {"content": text or " "}))
            moment = time.perf_counter()
            (self.gaps if number else self.waits).append(moment - (last if number else began))
            last = moment
            if self.breaks:
                await event(writer, {"error": {"message": self.error}})
                break
        if not self.ends_early and not self.breaks:
            for index in choices:
                await event(writer, {**choice(index, {}), "choices": [{"index": index, "finish_reason": "stop"}]})
            if self.has_usage:
                details = {"cached_tokens": 4}
                tokens = self.num_tokens * len(choices)
                usage = {"prompt_tokens": 10, "completion_tokens": tokens, "prompt_tokens_details": details}
                await event(writer, {"choices": [], "usage": usage})
            await event(writer, "[DONE]")
        writer.write(b"0\r\n\r\n")
        await writer.drain()


def choice(index: int, delta: dict[str, str]) -> dict[str, Any]:
    return {"choices": [{"index": index, "delta": delta, "finish_reason": None}], "usage": None}


async def event(writer: asyncio.StreamWriter, value: object) -> None:
    data = f"data: {value if isinstance(value, str) else json.dumps(value)}\n\n".encode()
    writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
    await writer.drain()


async def pause(seconds: float, reader: asyncio.StreamReader) -> None:
    """Raises ConnectionError when the client goes away meanwhile: it has nothing to say but that."""
    if seconds:
        try:
            await asyncio.wait_for(reader.read(1), seconds)
        except TimeoutError:
            return
        raise ConnectionResetError


def send(writer: asyncio.StreamWriter, status: int, text: str, more: str = "") -> None:
    head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\n{more}Content-Length: {len(text)}\r\n\r\n"
    writer.write(head.encode() + text.encode())


@contextlib.contextmanager
def serving(**settings: Any) -> Iterator[Fake]:
    """One of them, while the block runs."""
    fake, loop = Fake(**settings), asyncio.new_event_loop()

    async def start() -> asyncio.Server:
        return await asyncio.start_server(fake.serve, "127.0.0.1", 0)

    server = loop.run_until_complete(start())
    fake.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def stop() -> None:
        server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await asyncio.sleep(0.01)  # transports close in the loop's next turns

    try:
        yield fake
    finally:
        asyncio.run_coroutine_threadsafe(stop(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()
