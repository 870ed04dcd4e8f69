"""``python -m loadtest.fairness --url URL --small-key KEY --large-key KEY``: does a tenant that floods slow the other?

The small tenant asks at a steady rate, first alone and then beside the large one, which offers ``--times`` as much.
Reported is the small one's latency of whole requests, and its median beside the other over that alone.
"""

import argparse
import asyncio
import json
import random
import statistics
import sys
import time

from loadtest.client import complete
from loadtest.figures import percentile
from loadtest.overload import WORDS


async def ask(url: str, body: dict[str, object], key: str, seconds: list[float], errors: list[str]) -> None:
    """One request."""
    done = await complete(url, body, key)
    if done.error:
        errors.append(done.error)
    else:
        seconds.append(done.seconds)


async def offer(options: argparse.Namespace, key: str, rate: float, draw: random.Random) -> tuple[list[float], int]:
    """Latencies of what was answered, and how many requests were not, at ``rate`` random arrivals a second."""
    seconds: list[float] = []
    errors: list[str] = []
    end = time.monotonic() + options.seconds
    async with asyncio.TaskGroup() as group:
        while time.monotonic() < end:
            prompt = " ".join(draw.choice(WORDS) for _ in range(options.words))
            body = {"model": options.model, "prompt": prompt, "max_tokens": options.max_tokens, "ignore_eos": True}
            group.create_task(ask(options.url, {**body, "temperature": 0}, key, seconds, errors))
            await asyncio.sleep(draw.expovariate(rate))
    return seconds, len(errors)


async def measure(options: argparse.Namespace) -> dict[str, object]:
    """In turns."""
    draw, ratios, alone, beside = random.Random(5), [], [], []
    num_refused = 0
    for _ in range(options.rounds):
        first, missed_alone = await offer(options, options.small_key, options.rate, draw)
        (second, missed), (_, refused) = await asyncio.gather(
            offer(options, options.small_key, options.rate, draw),
            offer(options, options.large_key, options.rate * options.times, draw),
        )
        if missed + missed_alone:
            raise RuntimeError(f"{missed + missed_alone} requests of the small tenant were not served")
        ratios.append(statistics.median(second) / statistics.median(first))
        alone += first
        beside += second
        num_refused += refused
    return {
        "alone_ms_p50": round(statistics.median(alone) * 1000, 1),
        "alone_ms_p95": round(percentile(alone, 0.95) * 1000, 1),
        "beside_ms_p50": round(statistics.median(beside) * 1000, 1),
        "beside_ms_p95": round(percentile(beside, 0.95) * 1000, 1),
        "ratios": [round(ratio, 2) for ratio in ratios],
        "ratio": round(statistics.median(ratios), 2),
        "large_not_served": num_refused,
    }


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.fairness", description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--small-key", required=True)
    parser.add_argument("--large-key", required=True)
    parser.add_argument("--rate", type=float, default=1.0, help="requests a second of the small tenant")
    parser.add_argument("--times", type=float, default=20.0, help="what the large one offers over that")
    parser.add_argument("--words", type=int, default=24, help="length of the prompts")
    parser.add_argument("--max-tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each phase")
    options = parser.parse_args()
    sys.stdout.write(json.dumps(asyncio.run(measure(options))) + "\n")


if __name__ == "__main__":
    main()
