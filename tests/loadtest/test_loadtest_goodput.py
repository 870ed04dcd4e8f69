"""Against a server with two places: what is served is counted whoever asked, and refusals go where they should."""

import asyncio

from loadtest.goodput import compare
from loadtest.overload import Target


def test_a_server_whose_refusals_cost_nothing() -> None:
    num_served, num_refused = 0, 0

    async def run() -> dict[str, object]:
        places = 0

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal places, num_served, num_refused
            head = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0]))
            if places == 2:
                num_refused += 1
                writer.write(b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n")
            else:
                places += 1
                await asyncio.sleep(0.01)  # the work
                places -= 1
                num_served += 1
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
            writer.close()

        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            target = Target("127.0.0.1", server.sockets[0].getsockname()[1], "m", 4, 4)
            return await compare(target, 2, 5.0, 2, 0.3)

    figures = asyncio.run(run())
    assert isinstance(figures["ratios"], list)
    assert len(figures["ratios"]) == 2
    assert isinstance(figures["refusals"], int)
    assert 0 < figures["refusals"] <= num_refused  # those who keep asking are refused, too
    assert num_served > 0
    rates = figures["served_a_second"]
    assert isinstance(rates, list)
    counted = sum(sum(pair) for pair in rates) + figures["capacity_alone"]  # type: ignore[operator]
    assert counted * 0.3 <= num_served + 5
