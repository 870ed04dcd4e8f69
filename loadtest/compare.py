"""``python -m loadtest.compare --server NAME=URL ...``: the same workload on running servers in turn, with ratios.

Rounds alternate between the servers, so that a machine that becomes slower does so for all. The first server is what
the others are compared with. Prompts are random token ids, new in each round: no cache helps.
"""

import argparse
import asyncio
import random
import resource
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from loadtest.client import Completion, complete


@dataclass(frozen=True, slots=True)
class Workload:
    """Closed loop: ``concurrency`` clients, each sending its next request when the last has ended."""

    model: str
    concurrency: int
    num_requests: int
    num_prompt_tokens: int
    num_output_tokens: int
    largest_id: int


@dataclass(frozen=True, slots=True)
class Round:
    """One run of the workload on one server."""

    tokens_per_second: float
    first_token: float  # mean, seconds
    gap: float  # median between events, seconds
    client_cpu: float  # seconds of this process


async def run_round(url: str, workload: Workload, seed: int, api_key: str | None) -> Round:
    """Raises RuntimeError when a request fails: such a figure would mean nothing."""
    draw = random.Random(seed)
    prompts = [
        [draw.randrange(workload.largest_id) for _ in range(workload.num_prompt_tokens)]
        for _ in range(workload.num_requests)
    ]
    results: list[Completion] = []

    async def client() -> None:
        while prompts:
            body = {
                "model": workload.model,
                "prompt": prompts.pop(),
                "max_tokens": workload.num_output_tokens,
                "temperature": 0,
                "ignore_eos": True,
            }
            results.append(await complete(url, body, api_key))

    started, cpu = time.perf_counter(), cpu_seconds()
    await asyncio.gather(*(client() for _ in range(workload.concurrency)))
    seconds = time.perf_counter() - started
    if failed := [result.error for result in results if result.error]:
        raise RuntimeError(f"{url}: {len(failed)} of {len(results)} requests failed, the first: {failed[0]}")
    return Round(
        sum(result.num_tokens for result in results) / seconds,
        statistics.mean(result.first_token for result in results),
        statistics.median(gap for result in results for gap in result.gaps),
        cpu_seconds() - cpu,
    )


def cpu_seconds() -> float:
    """Of this process so far."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def spread(values: Sequence[float], scale: float = 1.0, digits: int = 1) -> str:
    """Median and the range around it."""
    shown = [f"{value * scale:.{digits}f}" for value in (statistics.median(values), min(values), max(values))]
    return f"{shown[0]} ({shown[1]} - {shown[2]})"


def report(names: Sequence[str], rounds: dict[str, list[Round]], out: Sequence[str]) -> str:
    """A table: a line a server, ratios to the first one round by round."""
    lines = list(out)
    first = rounds[names[0]]
    for name in names:
        own = rounds[name]
        ratios = [mine.tokens_per_second / other.tokens_per_second for mine, other in zip(own, first, strict=True)]
        waits = [mine.first_token / other.first_token for mine, other in zip(own, first, strict=True)]
        lines.append(
            f"| {name} | {spread([r.tokens_per_second for r in own])} | {spread(ratios, digits=2)} "
            f"| {spread([r.first_token for r in own], 1e3)} | {spread(waits, digits=2)} "
            f"| {spread([r.gap for r in own], 1e3, 2)} | {spread([r.client_cpu for r in own], digits=2)} |"
        )
    return "\n".join(lines)


HEADER = (
    "| server | tokens/s | ratio | TTFT ms | ratio | ms between events | client CPU s |",
    "|---|---|---|---|---|---|---|",
)


async def compare(servers: dict[str, str], workload: Workload, num_rounds: int, api_key: str | None) -> str:
    """Warm up, then measure in turns."""
    rounds: dict[str, list[Round]] = {name: [] for name in servers}
    for number in range(num_rounds + 1):
        for name, url in servers.items():
            result = await run_round(url, workload, number, api_key)
            if number:  # the first one warms up
                rounds[name].append(result)
    return report(list(servers), rounds, HEADER)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.compare", description=__doc__)
    parser.add_argument("--server", action="append", required=True, metavar="NAME=URL", help="repeat for each server")
    parser.add_argument("--model", default="smollm2", help="name of the model on every server")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--requests", type=int, help="a round; default: twice the concurrency, at least 4")
    parser.add_argument("--input-len", type=int, default=128)
    parser.add_argument("--output-len", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--largest-id", type=int, default=49000, help="prompts are ids below this")
    parser.add_argument("--api-key")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Prints a table for each concurrency."""
    options = parse(arguments)
    servers = dict(pair.split("=", 1) for pair in options.server)
    for concurrency in options.concurrency:
        num_requests = options.requests or max(4, 2 * concurrency)
        sizes = (options.input_len, options.output_len)
        workload = Workload(options.model, concurrency, num_requests, *sizes, options.largest_id)
        table = asyncio.run(compare(servers, workload, options.rounds, options.api_key))
        sys.stdout.write(f"\nconcurrency {concurrency}, {sizes[0]} tokens in, {sizes[1]} out\n\n{table}\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
