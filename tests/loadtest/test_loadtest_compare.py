"""The load generator against a server whose every figure is known."""

import argparse
import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from loadtest.client import complete
from loadtest.compare import Workload, compare, named, take_turns


@asynccontextmanager
async def scripted_server(
    events: list[str], status: str = "200 OK"
) -> AsyncIterator[tuple[str, list[dict[str, object]]]]:
    """Answers every request with the same events; (URL, the bodies it was sent)."""
    bodies: list[dict[str, object]] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        lengths = [line.split(b":")[1] for line in head.splitlines() if line.lower().startswith(b"content-length")]
        bodies.append(json.loads(await reader.readexactly(int(lengths[0]))))
        writer.write(f"HTTP/1.1 {status}\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n".encode())
        for event in events:
            writer.write(f"data: {event}\n\n".encode())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()
        yield f"http://{host}:{port}", bodies


TOKEN = '{"choices":[{"index":0,"text":"a"}],"usage":null}'
USAGE = '{"choices":[],"usage":{"completion_tokens":7}}'


def test_tokens_are_the_servers_count_and_gaps_lie_between_events() -> None:
    async def run() -> None:
        async with scripted_server([TOKEN, TOKEN, TOKEN, USAGE, "[DONE]"]) as (url, bodies):
            result = await complete(url, {"prompt": [1, 2]})
        assert (result.num_tokens, len(result.gaps), result.error) == (7, 2, "")
        assert 0 < result.first_token <= result.seconds
        assert bodies == [{"prompt": [1, 2], "stream": True, "stream_options": {"include_usage": True}}]

    asyncio.run(run())


@pytest.mark.parametrize(
    ("events", "status", "said"),
    [([TOKEN], "200 OK", "without usage"), (["x"], "503 Busy", "x"), (['{"error":{"message":"no"}}'], "200 OK", "no")],
)
def test_what_went_wrong_is_said(events: list[str], status: str, said: str) -> None:
    async def run() -> None:
        async with scripted_server(events, status) as (url, _):
            assert said in (await complete(url, {})).error
            with pytest.raises(RuntimeError, match="requests failed"):
                await compare({"one": url}, Workload("m", 1, 1, 2, 2, 9), 1, None)

    asyncio.run(run())


def test_servers_take_turns_at_the_same_prompts() -> None:
    async def run() -> None:
        events = [TOKEN, TOKEN, USAGE]
        async with scripted_server(events) as (first, asked_first), scripted_server(events) as (second, asked_second):
            table = await compare({"one": first, "two": second}, Workload("m", 2, 3, 4, 5, 99), 2, None)
        assert len(asked_first) == len(asked_second) == 3 * 3  # a round to warm up and two that count
        prompts = [sorted(str(body["prompt"]) for body in asked) for asked in (asked_first, asked_second)]
        assert prompts[0] == prompts[1]
        assert len(set(prompts[0])) == 9
        assert [line.split(" | ")[0] for line in table.splitlines()[2:]] == ["| one", "| two"]
        assert "1.00 (1.00 - 1.00)" in table.splitlines()[2]

    asyncio.run(run())


def test_the_first_round_warms_up_and_is_forgotten() -> None:
    asked: list[tuple[str, int]] = []

    async def run(name: str, number: int) -> int:
        asked.append((name, number))
        return number

    rounds = asyncio.run(take_turns(["one", "two"], 2, run))
    assert rounds == {"one": [1, 2], "two": [1, 2]}
    assert asked == [(name, number) for number in range(3) for name in ("one", "two")]


@pytest.mark.parametrize("pair", ["url", "=url", ""])
def test_a_pair_has_a_name(pair: str) -> None:
    assert named("one=http://a?b=c") == ("one", "http://a?b=c")
    with pytest.raises(argparse.ArgumentTypeError, match="is not NAME=VALUE"):
        named(pair)
