"""``python -m loadtest.overload --url URL``: are the promises of a server kept that says 429 with Retry-After?

``burst``: many requests at once, of clients who come again when they are told to, and nobody else. The share of first
retries that are admitted is what Retry-After is worth. ``open``: arrivals at a steady rate, of clients who do not come
again; how long a refusal takes.
"""

import argparse
import asyncio
import json
import random
import sys
import time
from copy import deepcopy
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from loadtest.figures import percentile

WORDS = ("sea", "lighthouse", "keeper", "ship", "storm", "harbour", "island", "lamp", "night", "gull", "rope", "anchor")


@dataclass(slots=True)
class Tally:
    """What came of all requests. ``tries``: by how often the client had been refused before, whether it was let in."""

    tries: dict[int, list[bool]] = field(default_factory=dict)
    refusals: list[float] = field(default_factory=list)  # seconds to the answer
    told: list[int] = field(default_factory=list)  # seconds, at the first refusal

    def report(self, seconds: float) -> str:
        """One line of JSON."""
        retries = self.tries.get(1, [])
        figures: dict[str, object] = {
            "seconds": round(seconds, 1),
            "requests": len(self.tries.get(0, ())),
            "admitted_at_once": sum(self.tries.get(0, ())),
            "first_retries": len(retries),
            "admitted_at_first_retry": round(sum(retries) / len(retries), 4) if retries else None,
            "longest_told": max(self.told, default=None),
        }
        if self.refusals:
            for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0)):
                figures[f"refusal_ms_{name}"] = round(percentile(self.refusals, share) * 1000, 1)
        return json.dumps(figures)


@dataclass(frozen=True, slots=True)
class Target:
    """A server, and what is asked of it."""

    host: str
    port: int
    model: str
    num_words: int
    max_tokens: int

    def body(self, draw: random.Random) -> bytes:
        """A prompt that no cache knows."""
        prompt = " ".join(draw.choice(WORDS) for _ in range(self.num_words))
        asked = {"model": self.model, "prompt": prompt, "max_tokens": self.max_tokens, "ignore_eos": True}
        return json.dumps({**asked, "temperature": 0}).encode()

    async def ask(self, body: bytes) -> tuple[int, int, float]:
        """Status, Retry-After, and seconds until the head of the answer came. Returns when all of it is here."""
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {self.host}\r\nConnection: close\r\nContent-Length: {len(body)}"
        reader, writer = await asyncio.open_connection(self.host, self.port)
        try:
            started = time.monotonic()
            writer.write(head.encode() + b"\r\nContent-Type: application/json\r\n\r\n" + body)
            first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            seconds = time.monotonic() - started
            await reader.read()
        finally:
            writer.close()
        fields = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        return int(first.split()[1]), int(fields.get("retry-after", "0")), seconds


async def client(target: Target, body: bytes, tally: Tally, *, comes_again: bool) -> None:
    """One of them. Raises RuntimeError on an answer that is neither 200 nor 429."""
    num_refused = 0
    while True:
        status, retry_after, seconds = await target.ask(body)
        if status not in (200, 429):
            raise RuntimeError(f"the server answered {status}")
        tally.tries.setdefault(num_refused, []).append(status == 200)
        if status == 200:
            return
        tally.refusals.append(seconds)
        if not num_refused:
            tally.told.append(retry_after)
        if not comes_again:
            return
        num_refused += 1
        await asyncio.sleep(retry_after)


async def burst(target: Target, num_clients: int, num_before: int) -> Tally:
    """``num_before`` requests first, from which the server may learn how fast it is."""
    draw = random.Random(7)
    await asyncio.gather(*(client(target, target.body(draw), Tally(), comes_again=True) for _ in range(num_before)))
    tally = Tally()
    await asyncio.gather(*(client(target, target.body(draw), tally, comes_again=True) for _ in range(num_clients)))
    return tally


async def open_loop(
    target: Target, rate: float, seconds: float, draw: random.Random | None = None, *, counts_until_end: bool = False
) -> Tally:
    """``rate`` arrivals a second, at random times. ``counts_until_end``: what is answered later does not count."""
    draw, tally, end = draw or random.Random(7), Tally(), time.monotonic() + seconds
    async with asyncio.TaskGroup() as group:
        while time.monotonic() < end:
            group.create_task(client(target, target.body(draw), tally, comes_again=False))
            await asyncio.sleep(draw.expovariate(rate))
        if counts_until_end:
            tally = deepcopy(tally)
    return tally


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.overload", description=__doc__)
    parser.add_argument("mode", choices=("burst", "open"))
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--words", type=int, default=24, help="length of the prompts")
    parser.add_argument("--max-tokens", type=int, default=8)
    parser.add_argument("--clients", type=int, default=20 * 256, help="burst: how many at once")
    parser.add_argument("--before", type=int, default=128, help="burst: requests before it")
    parser.add_argument("--rate", type=float, default=50.0, help="open: arrivals a second")
    parser.add_argument("--seconds", type=float, default=30.0, help="open: how long")
    options = parser.parse_args()
    url = urlsplit(options.url)
    target = Target(url.hostname or "127.0.0.1", url.port or 80, options.model, options.words, options.max_tokens)
    started = time.monotonic()
    if options.mode == "burst":
        tally = asyncio.run(burst(target, options.clients, options.before))
    else:
        tally = asyncio.run(open_loop(target, options.rate, options.seconds))
    sys.stdout.write(tally.report(time.monotonic() - started) + "\n")


if __name__ == "__main__":
    main()
