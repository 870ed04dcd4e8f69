"""Against a server that serves one key at once and the other when it likes: whose latency is whose."""

import argparse
import asyncio

import pytest

from loadtest.fairness import measure

ANSWER = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
    b'data: {"choices":[{"text":"a"}]}\n\ndata: {"choices":[],"usage":{"completion_tokens":1}}\n\ndata: [DONE]\n\n'
)


def run(*, refuses_small: bool = False) -> tuple[dict[str, object], dict[str, int]]:
    """The figures, and how often each key came."""
    came = {"small": 0, "large": 0}

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        await reader.readexactly(int(head.lower().partition("content-length: ")[2].split("\r\n")[0]))
        key = "small" if "Bearer small" in head else "large"
        came[key] += 1
        if key == "large" or refuses_small:
            writer.write(b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 0\r\n\r\n")
        else:
            writer.write(ANSWER)
        writer.close()

    async def main() -> dict[str, object]:
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            return await measure(
                argparse.Namespace(
                    url=f"http://127.0.0.1:{port}",
                    model="m",
                    small_key="small",
                    large_key="large",
                    rate=100.0,
                    times=5.0,
                    words=4,
                    max_tokens=1,
                    rounds=2,
                    seconds=0.2,
                )
            )

    return asyncio.run(main()), came


def test_each_tenant_with_its_key() -> None:
    figures, came = run()
    assert figures["large_not_served"] == came["large"] > came["small"] > 0
    assert isinstance(figures["ratios"], list)
    assert len(figures["ratios"]) == 2


def test_a_small_tenant_that_is_not_served_is_no_figure() -> None:
    with pytest.raises(RuntimeError, match="of the small tenant were not served"):
        run(refuses_small=True)
