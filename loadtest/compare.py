"""``python -m loadtest.compare --server NAME=URL ...``: the same workload on running servers in turn, with ratios.

Rounds alternate between the servers, so that a machine that becomes slower does so for all. The first server is what
the others are compared with. Prompts are random token ids, new in each round: no cache helps.

With ``--locust`` the workload is the mix of users of ``python -m loadtest``, on one server after the other; what stands
behind ``--`` is for it: ``python -m loadtest.compare --locust --host a=URL --host b=URL -- --run-time 30s --rate 2``.
"""

import argparse
import asyncio
import random
import resource
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from loadtest.client import Completion, complete
from loadtest.figures import percentile, spread
from loadtest.side_by_side import compare_mixes, run_mix, table

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Workload:
    """Closed loop: ``concurrency`` clients, each sending its next request when the last has ended."""

    model: str
    concurrency: int
    num_requests: int
    num_prompt_tokens: int
    num_output_tokens: int
    largest_id: int

    def prompt(self, draw: random.Random, num_tokens: int | None = None) -> list[int]:
        """Random ids, ``num_prompt_tokens`` of them by default."""
        return [draw.randrange(self.largest_id) for _ in range(num_tokens or self.num_prompt_tokens)]

    def body(self, prompt: list[int], num_output_tokens: int | None = None) -> dict[str, object]:
        """A request for ``num_output_tokens``, by default the workload's, whatever the model says."""
        return {
            "model": self.model,
            "prompt": prompt,
            "max_tokens": num_output_tokens or self.num_output_tokens,
            "temperature": 0,
            "ignore_eos": True,
        }


@dataclass(frozen=True, slots=True)
class Round:
    """One run of the workload on one server."""

    num_tokens: int
    tokens_per_second: float
    first_token: float  # mean, seconds
    gap: float  # median between events, seconds
    gap_p99: float  # seconds
    client_cpu: float  # seconds of this process


async def run_round(url: str, workload: Workload, seed: int, api_key: str | None) -> Round:
    """Raises RuntimeError when a request fails: such a figure would mean nothing."""
    # A server remembers prompts: no two workloads of one sitting may share them.
    draw = random.Random(f"{seed} {workload}")
    prompts = [workload.prompt(draw) for _ in range(workload.num_requests)]
    results: list[Completion] = []

    async def client() -> None:
        while prompts:
            results.append(await complete(url, workload.body(prompts.pop()), api_key))

    started, cpu = time.perf_counter(), cpu_seconds()
    await asyncio.gather(*(client() for _ in range(workload.concurrency)))
    seconds = time.perf_counter() - started
    check(url, results)
    gaps = [gap for result in results for gap in result.gaps]
    num_tokens = sum(result.num_tokens for result in results)
    return Round(
        num_tokens,
        num_tokens / seconds,
        statistics.mean(result.first_token for result in results),
        statistics.median(gaps),
        percentile(gaps, 0.99),
        cpu_seconds() - cpu,
    )


def check(url: str, results: Sequence[Completion]) -> None:
    """Raises RuntimeError when a request has failed."""
    if failed := [result.error for result in results if result.error]:
        raise RuntimeError(f"{url}: {len(failed)} of {len(results)} requests failed, the first: {failed[0]}")


def cpu_seconds() -> float:
    """Of this process so far."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


async def take_turns(
    names: Iterable[str], num_rounds: int, run: Callable[[str, int], Awaitable[T]]
) -> dict[str, list[T]]:
    """``run(name, number of the round)`` for each name in each round. The first round warms up and is forgotten."""
    rounds: dict[str, list[T]] = {name: [] for name in names}
    for number in range(num_rounds + 1):
        for name, results in rounds.items():
            result = await run(name, number)
            if number:
                results.append(result)
    return rounds


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
            f"| {spread([r.gap for r in own], 1e3, 2)} | {spread([r.gap_p99 for r in own], 1e3, 2)} "
            f"| {spread([r.client_cpu for r in own], digits=2)} |"
        )
    return "\n".join(lines)


HEADER = (
    "| server | tokens/s | ratio | TTFT ms | ratio | ms between events | p99 ms | client CPU s |",
    "|---|---|---|---|---|---|---|---|",
)


async def compare(servers: dict[str, str], workload: Workload, num_rounds: int, api_key: str | None) -> str:
    """Warm up, then measure in turns."""
    rounds = await take_turns(
        servers, num_rounds, lambda name, number: run_round(servers[name], workload, number, api_key)
    )
    return report(list(servers), rounds, HEADER)


def named(pair: str) -> tuple[str, str]:
    """``NAME=VALUE`` as (NAME, VALUE). Raises argparse.ArgumentTypeError for anything else."""
    name, separator, value = pair.partition("=")
    if not name or not separator:
        raise argparse.ArgumentTypeError(f"{pair!r} is not NAME=VALUE")
    return name, value


def default_num_requests(concurrency: int) -> int:
    """Requests of a round: each client sends two, and there are at least four."""
    return max(4, 2 * concurrency)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.compare", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--server",
        "--host",
        action="append",
        required=True,
        type=named,
        metavar="NAME=URL",
        help="repeat for each server",
    )
    parser.add_argument(
        "--model", help="name of the model on every server; default: smollm2, with --locust what each lists first"
    )
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--requests", type=int, help="a round; default: twice the concurrency, at least 4")
    parser.add_argument("--input-len", type=int, default=128)
    parser.add_argument("--output-len", type=int, default=128)
    parser.add_argument("--rounds", type=int, help="default: 3, with --locust 1")
    parser.add_argument("--largest-id", type=int, default=49000, help="prompts are ids below this")
    parser.add_argument("--api-key")
    parser.add_argument("--locust", action="store_true", help="the mix of users instead")
    parser.add_argument(
        "--output", type=Path, default=Path("build/loadtest"), help="with --locust: a folder for their reports"
    )
    parser.add_argument("rest", nargs="*", metavar="-- FLAGS", help="with --locust: flags of python -m loadtest")
    options = parser.parse_args(arguments)
    if options.rest and not options.locust:
        parser.error(f"{options.rest[0]!r} is for --locust")
    return options


def compare_with_locust(servers: dict[str, str], options: argparse.Namespace) -> None:
    """Prints one table. Where the reports lie is said with each run."""
    model = ["--model", options.model] if options.model else []

    def run(name: str, url: str, number: int) -> dict[str, object]:
        return run_mix(name, url, number, options.output, [*model, *options.rest], options.api_key)

    def say(text: str) -> None:
        sys.stderr.write(f"{text}\n")

    rounds = compare_mixes(servers, options.rounds or 1, run, say)
    sys.stdout.write(f"\n{table(rounds)}\n\nreports: {options.output}/ROUND-NAME/report.html\n")


def main(arguments: Sequence[str]) -> int:
    """Prints a table for each concurrency."""
    options = parse(arguments)
    servers = dict(options.server)
    if options.locust:
        compare_with_locust(servers, options)
        return 0
    for concurrency in options.concurrency:
        num_requests = options.requests or default_num_requests(concurrency)
        sizes = (options.input_len, options.output_len)
        workload = Workload(options.model or "smollm2", concurrency, num_requests, *sizes, options.largest_id)
        table = asyncio.run(compare(servers, workload, options.rounds or 3, options.api_key))
        sys.stdout.write(f"\nconcurrency {concurrency}, {sizes[0]} tokens in, {sizes[1]} out\n\n{table}\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
