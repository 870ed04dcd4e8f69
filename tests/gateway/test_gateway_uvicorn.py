"""The same application behind a real socket: the official client, raw events, real disconnects."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import openai
import pytest
import uvicorn
from gateway_fakes import CHAT, COMP, EOS, FakeEngineClient, chat, comp, ids, make_state, sse_events

from gateway.app import create_app
from ipc.errors import EngineError


class Server:
    """uvicorn in a thread."""

    def __init__(self, app: Any) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)  # so that a slow reader is felt soon
        self.port = self._socket.getsockname()[1]
        config = uvicorn.Config(app, log_level="warning", lifespan="off", ws="none", http="httptools", loop="uvloop")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]})

    def __enter__(self) -> "Server":
        self._thread.start()
        until(lambda: self._server.started)
        return self

    def __exit__(self, *error: object) -> None:
        self._server.should_exit = self._server.force_exit = True
        self._thread.join()
        self._socket.close()

    def raw(self, path: str, body: Any) -> socket.socket:
        """A connection on which the request was sent."""
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=5)
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\nConnection: close\r\n\r\n"
        connection.sendall(head.encode() + data)
        return connection


def until(condition: Any) -> None:
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def until_stable(number: Any) -> None:
    """Until it has not changed for a while."""
    seen: list[int] = []

    def is_stable() -> bool:
        seen.append(number())
        return len(seen) > 20 and len(set(seen[-20:])) == 1

    until(is_stable)


def read_all(connection: socket.socket) -> bytes:
    parts = []
    while data := connection.recv(65536):
        parts.append(data)
    connection.close()
    return b"".join(parts)


def chunked_body(response: bytes) -> bytes:
    _, _, rest = response.partition(b"\r\n\r\n")
    parts = []
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        parts.append(rest[: int(size, 16)])
        rest = rest[int(size, 16) + 2 :]
    return b"".join(parts)


@pytest.fixture
def server(engine: FakeEngineClient) -> Iterator[Server]:
    with Server(create_app(make_state(engine))) as running:
        yield running


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="x", max_retries=0) as made:
        yield made


MESSAGES: Any = [{"role": "user", "content": "hi"}]


def test_openai_client(client: openai.OpenAI, engine: FakeEngineClient) -> None:
    engine.answer("Hello, world")
    answer = client.chat.completions.create(model="tiny", messages=MESSAGES, logprobs=True, top_logprobs=1)
    assert answer.choices[0].message.content == "Hello, world"
    assert answer.choices[0].logprobs is not None
    assert answer.usage is not None
    assert answer.usage.completion_tokens == len(ids("Hello, world")) + 1
    # What came back can go into the next request as it is.
    history: Any = [*MESSAGES, answer.choices[0].message.model_dump(), *MESSAGES]
    client.chat.completions.create(model="tiny", messages=history)
    text = client.completions.create(model="tiny", prompt=["a", "b"], echo=True, logprobs=1, max_tokens=2)
    assert [choice.text for choice in text.choices] == ["aHe", "bHe"]
    assert [model.id for model in client.models.list()] == ["tiny", "alias"]
    assert client.models.retrieve("tiny").id == "tiny"


def test_openai_client_streams(client: openai.OpenAI, engine: FakeEngineClient) -> None:
    engine.answer("Hello 🙂", "other")
    options: Any = {"include_usage": True}
    chunks = list(
        client.chat.completions.create(model="tiny", messages=MESSAGES, n=2, stream=True, stream_options=options)
    )
    texts = ["", ""]
    for chunk in chunks:
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == ["Hello 🙂", "other"]
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == len(ids("Hello 🙂")) + len(ids("other")) + 2
    parts = client.completions.create(model="tiny", prompt="x", stream=True, max_tokens=5)
    assert "".join(part.choices[0].text for part in parts) == "Hello"


def test_openai_async_client(server: Server, engine: FakeEngineClient) -> None:
    async def scenario() -> list[str | None]:
        url = f"http://127.0.0.1:{server.port}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="x", max_retries=0) as client:
            calls = [client.chat.completions.create(model="tiny", messages=MESSAGES) for _ in range(8)]
            return [answer.choices[0].message.content for answer in await asyncio.gather(*calls)]

    engine.answer("abc")
    assert asyncio.run(scenario()) == ["abc"] * 8


def test_openai_client_understands_the_errors(client: openai.OpenAI, engine: FakeEngineClient) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model="tiny", messages=MESSAGES, temperature=3)
    assert bad.value.param == "temperature"
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="nope", messages=MESSAGES)
    assert missing.value.code == "model_not_found"
    engine.answer("abc", hold_after=2, failure=EngineError("the engine died", code="engine_dead"))
    with pytest.raises(openai.APIError, match="the engine died"):
        list(client.chat.completions.create(model="tiny", messages=MESSAGES, stream=True))


def test_raw_stream(server: Server, engine: FakeEngineClient) -> None:
    engine.answer("Grüße")
    response = read_all(server.raw(CHAT, chat(stream=True)))
    assert response.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"content-type: text/event-stream; charset=utf-8\r\n" in response
    events = sse_events(chunked_body(response))
    assert events[-1] == "[DONE]"
    assert "".join(event["choices"][0]["delta"].get("content", "") for event in events[:-1]) == "Grüße"


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("script", [{"is_accepted": False}, {"hold_after": 2}])
@pytest.mark.parametrize("path", [CHAT, COMP])
def test_closed_connections_abort_within_a_second(
    server: Server, engine: FakeEngineClient, path: str, script: dict[str, Any], stream: bool
) -> None:
    engine.answer("abcdef", **script)
    body = chat(stream=stream) if path == CHAT else comp(["a", "b", "c"], n=2, stream=stream)
    connection = server.raw(path, body)
    count = 1 if path == CHAT else 3
    until(lambda: len(engine.streams) == count and (script != {"hold_after": 2} or engine.streams[0].num_reads == 3))
    if stream and "hold_after" in script:
        assert connection.recv(1000).startswith(b"HTTP/1.1 200")
    started = time.monotonic()
    connection.close()
    until(lambda: all(fake.was_aborted for fake in engine.streams))
    assert time.monotonic() - started < 1


def test_readers_that_stop_reading_hold_up_nobody(
    server: Server, client: openai.OpenAI, engine: FakeEngineClient
) -> None:
    """Their streams are not read on, so nothing piles up here, and a close aborts them."""
    engine.answer("x" * 100)
    laggards = []
    for _ in range(3):
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        connection.connect(("127.0.0.1", server.port))
        body = json.dumps(comp(["x"] * 4, n=2, stream=True, logprobs=20, max_tokens=100)).encode()
        connection.sendall(b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (COMP.encode(), len(body)))
        connection.sendall(body)
        laggards.append(connection)
    until(lambda: len(engine.streams) == 12)
    until_stable(lambda: sum(fake.num_reads for fake in engine.streams))
    engine.answer("abc")
    answer = client.chat.completions.create(model="tiny", messages=MESSAGES)
    assert answer.choices[0].message.content == "abc"
    stalled = engine.streams[:12]
    assert not any(fake.has_left for fake in stalled)
    for connection in laggards:
        connection.close()
    until(lambda: all(fake.has_left for fake in stalled))


def test_large_bodies_are_refused_and_the_server_goes_on(engine: FakeEngineClient) -> None:
    with Server(create_app(make_state(engine, config={"max_request_bytes": 2048}))) as server:
        assert read_all(server.raw(CHAT, chat("x" * 4000))).startswith(b"HTTP/1.1 413")
        assert read_all(server.raw(CHAT, chat("x"))).startswith(b"HTTP/1.1 200")
    assert engine.streams[0].request.params.eos_token_ids == (EOS,)
