"""Against a server that refuses everybody once: what is counted."""

import asyncio
import json

from loadtest.overload import Tally, Target, burst, open_loop


async def against(refuse_first: bool, run: str) -> Tally:
    seen: set[bytes] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        body = await reader.readexactly(length)
        is_refused = refuse_first and body not in seen
        seen.add(body)
        status = b"429 Too Many Requests\r\nRetry-After: 0" if is_refused else b"200 OK"
        writer.write(b"HTTP/1.1 " + status + b"\r\nContent-Length: 2\r\n\r\n{}")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        target = Target("127.0.0.1", port, "m", 24, 8)
        if run == "burst":
            return await burst(target, 5, 2)
        return await open_loop(target, 200.0, 0.2)


def test_a_burst() -> None:
    tally = asyncio.run(against(True, "burst"))
    assert tally.tries == {0: [False] * 5, 1: [True] * 5}
    report = json.loads(tally.report(1.0))
    assert report["admitted_at_first_retry"] == 1.0
    assert (report["requests"], report["admitted_at_once"], report["longest_told"]) == (5, 0, 0)
    assert report["refusal_ms_p99"] > 0


def test_open_arrivals_do_not_come_again() -> None:
    tally = asyncio.run(against(True, "open"))
    assert set(tally.tries) == {0}
    assert not any(tally.tries[0])
    report = json.loads(asyncio.run(against(False, "open")).report(1.0))
    assert report["first_retries"] == 0
    assert "refusal_ms_p99" not in report
