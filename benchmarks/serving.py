"""``python -m benchmarks.serving``: octavo as a server under load, beside others if there are, and what it costs.

Starts its own servers, with the flags of each ``--octavo NAME=FLAGS``; others run already. Sends the load of
``loadtest.compare``; all servers take turns. Must not import torch: the load generator is to be light.
"""

import argparse
import asyncio
import contextlib
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from benchmarks.command import Part, positive, run_part
from benchmarks.report import Table
from benchmarks.server_process import RunningServer, octavo_server
from loadtest.beside import StreamRound, run_streams
from loadtest.compare import Round, Workload, default_num_requests, named, run_round, take_turns
from loadtest.figures import spread

TARGET_GATEWAY_MICROSECONDS = 40
TARGET_BESIDE_RATIO = 3
BESIDE_INPUT_TOKENS, BESIDE_OUTPUT_TOKENS = 16, 256
IDLE_SECONDS = 3.0
COLUMNS = (
    *("server", "tokens/s", "ratio", "TTFT ms", "ms between tokens", "p99 ms"),
    *("client CPU s", "gateway CPU s", "engine CPU s", "gateway µs a token"),
)
BESIDE_COLUMNS = (
    *("server", "ms between tokens", "p99 ms without", "p99 ms with", "p99 with / median"),
    *("p99 ms while it is computed", "its TTFT ms"),
)


@dataclass(frozen=True, slots=True)
class Servers:
    """Name to URL of all, and to the processes of those that are ours."""

    urls: dict[str, str]
    own: dict[str, RunningServer]


@dataclass(frozen=True, slots=True)
class CostedRound:
    """A round, and the CPU seconds of gateway and engine during it; None for a server that is not ours."""

    load: Round
    cpu: tuple[float, float] | None


def add_options(parser: argparse.ArgumentParser) -> None:
    """Servers and load."""
    parser.add_argument("--model", default="smollm2", help="what octavo serve takes")
    parser.add_argument("--model-name", default="smollm2", help="name of the model on every server")
    parser.add_argument(
        "--octavo",
        action="append",
        type=named,
        metavar="NAME=FLAGS",
        help="a server to start, with these flags; repeatable; default: bfloat16= int8=--quantization int8",
    )
    parser.add_argument("--server", action="append", type=named, default=[], metavar="NAME=URL", help="one that runs")
    parser.add_argument("--concurrency", type=positive, nargs="+", help="default: 1 8 32 64")
    parser.add_argument("--requests", type=positive, help="a round; default: twice the concurrency, at least 4")
    parser.add_argument("--input-tokens", type=positive, default=128)
    parser.add_argument("--output-tokens", type=positive, default=128)
    parser.add_argument("--beside-prompt-tokens", type=positive, help="default: 4000, with --quick 1000")
    parser.add_argument("--beside-streams", type=positive, default=32)
    parser.add_argument("--largest-id", type=positive, default=49000, help="prompts are ids below this")
    parser.add_argument("--api-key")


def measure(options: argparse.Namespace) -> Iterator[Table]:
    """A table for each concurrency, then the long prompt beside streams."""
    with contextlib.ExitStack() as stack:
        wanted = options.octavo or [("bfloat16", ""), ("int8", "--quantization int8")]
        own = {
            name: stack.enter_context(octavo_server(options.model, options.model_name, flags)) for name, flags in wanted
        }
        servers = Servers({name: server.url for name, server in own.items()} | dict(options.server), own)
        if own:
            yield idle_table(own)
        for concurrency in options.concurrency or ([1, 8] if options.quick else [1, 8, 32, 64]):
            yield asyncio.run(measure_load(servers, workload(options, concurrency), options))
        long = options.beside_prompt_tokens or (1000 if options.quick else 4000)
        streams = workload(options, options.beside_streams)
        # Short prompts, so that all begin within few steps; and they go on until the long one is computed.
        streams = replace(streams, num_prompt_tokens=BESIDE_INPUT_TOKENS, num_output_tokens=BESIDE_OUTPUT_TOKENS)
        yield asyncio.run(measure_beside(servers, streams, long, options))


def workload(options: argparse.Namespace, concurrency: int) -> Workload:
    """The load of the command line with so many clients."""
    num_requests = options.requests or default_num_requests(concurrency)
    sizes = (options.input_tokens, options.output_tokens)
    return Workload(options.model_name, concurrency, num_requests, *sizes, options.largest_id)


def idle_table(own: dict[str, RunningServer]) -> Table:
    """What a server computes when nobody asks it anything: at few tokens a second that is part of the cost of each."""
    before = {name: server.cpu() for name, server in own.items()}
    time.sleep(IDLE_SECONDS)
    rows = []
    for name, server in own.items():
        spent = [end - start for start, end in zip(before[name], server.cpu(), strict=True)]
        rows.append([name, *(f"{seconds / IDLE_SECONDS * 1e3:.1f}" for seconds in spent)])
    return Table("Idle servers", ("server", "gateway CPU ms a second", "engine CPU ms a second"), rows)


# ---- load


async def measure_load(servers: Servers, load: Workload, options: argparse.Namespace) -> Table:
    """Closed loop, servers in turns."""

    async def run(name: str, number: int) -> CostedRound:
        own = servers.own.get(name)
        before = own.cpu() if own else (0.0, 0.0)
        result = await run_round(servers.urls[name], load, number, options.api_key)
        after = own.cpu() if own else (0.0, 0.0)
        return CostedRound(result, (after[0] - before[0], after[1] - before[1]) if own else None)

    return load_table(load, await take_turns(servers.urls, options.rounds, run))


def load_table(load: Workload, rounds: dict[str, list[CostedRound]]) -> Table:
    """A row a server; ratios to the first one, round by round."""
    first = next(iter(rounds.values()))
    num_rounds = len(first)
    return Table(
        f"{load.concurrency} clients, {load.num_prompt_tokens} tokens in, {load.num_output_tokens} out, "
        f"{load.num_requests} requests a round, {num_rounds} rounds in turns",
        COLUMNS,
        [load_row(name, own, first) for name, own in rounds.items()],
        (
            "median of the rounds (lowest - highest); tokens/s are output tokens, TTFT is a round's mean",
            f"gateway: at most {TARGET_GATEWAY_MICROSECONDS} µs a token is the aim",
        ),
    )


def load_row(name: str, own: Sequence[CostedRound], first: Sequence[CostedRound]) -> list[str]:
    """The cells of one server."""
    pairs = zip(own, first, strict=True)
    cells = [
        name,
        spread([one.load.tokens_per_second for one in own]),
        spread([one.load.tokens_per_second / other.load.tokens_per_second for one, other in pairs], digits=2),
        spread([one.load.first_token for one in own], 1e3),
        spread([one.load.gap for one in own], 1e3, 2),
        spread([one.load.gap_p99 for one in own], 1e3, 2),
        spread([one.load.client_cpu for one in own], digits=2),
    ]
    costs = [(one.cpu, one.load.num_tokens) for one in own if one.cpu is not None]
    if not costs:
        return [*cells, "-", "-", "-"]
    return [
        *cells,
        spread([gateway for (gateway, _), _ in costs], digits=2),
        spread([engine for (_, engine), _ in costs], digits=2),
        spread([gateway / num_tokens for (gateway, _), num_tokens in costs], 1e6),
    ]


# ---- a long prompt beside streams


async def measure_beside(servers: Servers, load: Workload, num_tokens: int, options: argparse.Namespace) -> Table:
    """Streams alone and streams with a long prompt, in turns."""

    async def run(name: str, number: int) -> tuple[StreamRound, StreamRound]:
        url = servers.urls[name]
        alone = await run_streams(url, load, 0, 2 * number, options.api_key)
        return alone, await run_streams(url, load, num_tokens, 2 * number + 1, options.api_key)

    return beside_table(load, num_tokens, await take_turns(servers.urls, options.rounds, run))


def beside_table(load: Workload, num_tokens: int, rounds: dict[str, list[tuple[StreamRound, StreamRound]]]) -> Table:
    """A row a server."""
    rows = [
        [
            name,
            spread([alone.gap for alone, _ in own], 1e3, 2),
            spread([alone.gap_p99 for alone, _ in own], 1e3, 2),
            spread([beside.gap_p99 for _, beside in own], 1e3, 2),
            spread([beside.gap_p99 / alone.gap for alone, beside in own], digits=2),
            spread([beside.gap_p99_beside for _, beside in own], 1e3, 2),
            f"{statistics.median(beside.first_token for _, beside in own) * 1e3:.0f}",
        ]
        for name, own in rounds.items()
    ]
    return Table(
        f"{load.concurrency} streams ({load.num_prompt_tokens} tokens in, {load.num_output_tokens} out), "
        f"and one prompt of {num_tokens} tokens among them",
        BESIDE_COLUMNS,
        rows,
        (
            "between the last stream's first token and the first stream's last one; with and without in turns",
            f"p99 with the prompt over the median without it: at most {TARGET_BESIDE_RATIO} is the aim",
        ),
    )


PART = Part("serving", __doc__ or "", add_options, measure, num_rounds=5)

if __name__ == "__main__":
    sys.exit(run_part(PART, sys.argv[1:]))
