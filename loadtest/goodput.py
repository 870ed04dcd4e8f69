"""``python -m loadtest.goodput --url URL``: what refusing costs those who are served.

As many clients as have a place ask again and again, and a multiple of what they get served arrives beside them. In one
phase that traffic goes to a listener of its own, which refuses everything, in the next to the server: the same machine
is as busy, so the ratio of what is served is the price of the server's refusals. Phases alternate.
"""

import argparse
import asyncio
import json
import random
import statistics
import sys
import time
from contextlib import suppress
from urllib.parse import urlsplit

from loadtest.figures import percentile
from loadtest.overload import Tally, Target, open_loop

REFUSAL = b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


async def serve_refusals(port: int) -> None:
    """Answers every request with 429, reading no more of it than its head announces."""

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            await reader.readexactly(int(head.split(b"content-length:")[1].split(b"\r\n")[0]))
            writer.write(REFUSAL)
            await writer.drain()
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", port) as server:
        sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
        sys.stdout.flush()
        await server.serve_forever()


async def served(target: Target, num_clients: int, seconds: float, draw: random.Random) -> int:
    """Requests that came to their end in the time, of clients who ask again at once."""
    count, end = 0, time.monotonic() + seconds

    async def keep_asking() -> None:
        nonlocal count
        while time.monotonic() < end:
            status, retry_after, _ = await target.ask(target.body(draw))
            if status == 200:
                count += time.monotonic() < end
            else:
                await asyncio.sleep(min(retry_after, max(0.0, end - time.monotonic())))

    await asyncio.gather(*(keep_asking() for _ in range(num_clients)))
    return count


async def phase(
    target: Target, beside: Target, num_clients: int, rate: float, seconds: float, draw: random.Random
) -> tuple[float, Tally]:
    """Requests served a second, of both kinds, while ``rate`` arrive a second at ``beside``."""
    count, tally = await asyncio.gather(
        served(target, num_clients, seconds, draw),
        open_loop(beside, rate, seconds, draw, counts_until_end=True),
    )
    return (count + sum(map(sum, tally.tries.values()))) / seconds, tally


async def compare(target: Target, num_clients: int, times: float, rounds: int, seconds: float) -> dict[str, object]:
    """The figures."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "loadtest.goodput", "--refuse-on", "0", stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        port = int(await process.stdout.readline())
        elsewhere = Target("127.0.0.1", port, target.model, target.num_words, target.max_tokens)
        draw = random.Random(3)  # one for all phases: a prompt that comes twice is in the prefix cache
        alone = await served(target, num_clients, seconds, draw) / seconds
        ratios, refusals, rates = [], [], []
        for _ in range(rounds):
            without, _ = await phase(target, elsewhere, num_clients, times * alone, seconds, draw)
            with_all, tally = await phase(target, target, num_clients, times * alone, seconds, draw)
            ratios.append(with_all / without)
            rates.append((without, with_all))
            refusals += tally.refusals
    finally:
        process.kill()
        await process.wait()
    return {
        "capacity_alone": round(alone, 2),
        "served_a_second": [(round(without, 2), round(with_all, 2)) for without, with_all in rates],
        "goodput_ratio": round(statistics.median(ratios), 3),
        "ratios": [round(ratio, 3) for ratio in ratios],
        "refusals": len(refusals),
        "refusal_ms_p50": round(percentile(refusals, 0.5) * 1000, 1),
        "refusal_ms_p99": round(percentile(refusals, 0.99) * 1000, 1),
    }


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.goodput", description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--words", type=int, default=24, help="length of the prompts")
    parser.add_argument("--max-tokens", type=int, default=32)
    parser.add_argument("--clients", type=int, default=64, help="as many as have a place (--max-num-queued-reqs)")
    parser.add_argument("--times", type=float, default=10.0, help="arrivals beside them, in what they get served")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=15.0, help="of each phase")
    parser.add_argument("--refuse-on", type=int, help="be the listener that refuses, on this port (0: any)")
    options = parser.parse_args()
    if options.refuse_on is not None:
        asyncio.run(serve_refusals(options.refuse_on))
        return
    url = urlsplit(options.url)
    target = Target(url.hostname or "127.0.0.1", url.port or 80, options.model, options.words, options.max_tokens)
    figures = asyncio.run(compare(target, options.clients, options.times, options.rounds, options.seconds))
    sys.stdout.write(json.dumps(figures) + "\n")


if __name__ == "__main__":
    main()
