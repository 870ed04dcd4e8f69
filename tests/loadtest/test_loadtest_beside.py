"""Streams beside a long prompt: which gaps count, and when a run shows nothing."""

import asyncio
import json
import math

import pytest

from loadtest.beside import run_streams, summarize
from loadtest.client import Completion
from loadtest.compare import Workload
from loadtest.figures import percentile, spread

TOKEN = b'data: {"choices":[{"index":0,"text":"a"}],"usage":null}\n\n'
USAGE = b'data: {"choices":[],"usage":{"completion_tokens":3}}\n\n'


def stream(*times: float) -> Completion:
    return Completion(len(times), 0.0, times[-1], list(times))


def test_only_gaps_with_everybody_there_count() -> None:
    streams = [stream(1, 2, 4, 10, 11), stream(2, 3, 5, 9, 20)]
    result = summarize("url", streams, None)
    assert (result.gap, result.gap_p99) == (2, 6)  # 2 6 1 and 1 2 4, between 2 and 11
    assert math.isnan(result.gap_p99_beside)
    assert math.isnan(result.first_token)


def test_gaps_while_the_prompt_is_computed() -> None:
    streams = [stream(1, 2, 4, 10, 11), stream(2, 3, 5, 9, 20)]
    result = summarize("url", streams, Completion(1, 2.5, 9.5, [9.0]))
    assert (result.gap_p99_beside, result.first_token) == (4, 6.5)


def test_streams_that_are_too_short_show_nothing() -> None:
    with pytest.raises(RuntimeError, match="before the last began"):
        summarize("url", [stream(1, 2), stream(3, 4)], None)
    with pytest.raises(RuntimeError, match="before the long prompt was computed"):
        summarize("url", [stream(1, 2, 3)], Completion(1, 2.0, 5.0, [4.0]))


def test_the_long_prompt_comes_when_all_streams_have_begun() -> None:
    """The server holds each stream's rest back until it has answered the long prompt."""
    workload, num_long = Workload("m", 3, 6, 4, 5, 99), 50
    asked: list[int] = []

    async def run() -> None:
        is_answered = asyncio.Event()

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = await reader.readuntil(b"\r\n\r\n")
            lengths = [line.split(b":")[1] for line in head.splitlines() if line.startswith(b"Content-Length")]
            asked.append(len(json.loads(await reader.readexactly(int(lengths[0])))["prompt"]))
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n" + TOKEN)
            is_long = asked[-1] == num_long
            if not is_long:
                await is_answered.wait()
            writer.write(TOKEN + TOKEN + USAGE)
            writer.write_eof()
            await reader.read()  # until the client has read it all and is gone
            if is_long:
                is_answered.set()
            writer.close()

        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            host, port = server.sockets[0].getsockname()
            result = await run_streams(f"http://{host}:{port}", workload, num_long, 0, None)
        assert result.gap > 0
        assert result.first_token > 0

    asyncio.run(run())
    assert asked == [4, 4, 4, num_long]


def test_a_failed_stream_fails_the_run() -> None:
    async def run() -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 503 Busy\r\n\r\nbusy")
            await writer.drain()
            writer.close()

        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            host, port = server.sockets[0].getsockname()
            with pytest.raises(RuntimeError, match=r"2 of 2 requests failed, the first:\s+busy"):
                await run_streams(f"http://{host}:{port}", Workload("m", 2, 2, 4, 5, 99), 50, 0, None)

    asyncio.run(run())


def test_percentiles_are_values_that_occurred() -> None:
    values = [float(number) for number in range(100, 0, -1)]
    assert [percentile(values, share) for share in (0, 0.5, 0.99, 1)] == [1, 50, 99, 100]
    assert math.isnan(percentile([], 0.5))
    assert spread([1.0, 3.0, 2.0], 10, 0) == "20 (10 - 30)"
