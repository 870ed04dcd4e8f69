"""``python -m benchmarks.faults``: what clients notice when the engine is killed under them.

The same streams first without a fault, then in each round with one: SIGKILL somewhere in the middle. Then the contexts
that the new engine had to restore are sent once more, as prompts of fresh requests: what that takes is the part of the
wait that is computing. Must not import torch: the clients are to be light.
"""

import argparse
import asyncio
import os
import random
import signal
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.command import Part, positive, run_part
from benchmarks.report import Table
from benchmarks.server_process import RunningServer, descendants, octavo_server
from benchmarks.token_stream import TokenStream, read_stream
from ipc.errors import ConfigError
from loadtest.figures import spread

TARGET_SECONDS = 4.0
QUIET_SECONDS = 0.5
"""No engine starts in that time: tokens that come sooner after the signal are the dead one's, on their way."""

NUM_FRESH_TOKENS = 64
"""Of a fresh request that goes on: enough for it to be there until the last one has begun."""

FLAGS = "--engine-max-restarts 1000"


@dataclass(frozen=True, slots=True)
class Fault:
    """One SIGKILL. ``seconds``: from it to the next token of each stream that had not ended; ``prefill_seconds``: until
    all contexts were computed by fresh requests of one token; ``fresh_seconds``: the same by requests that go on as the
    streams do, so that decoding takes its share; ``errors``: of the streams, if any."""

    seconds: tuple[float, ...]
    prefill_seconds: float
    fresh_seconds: float
    num_context_tokens: int
    num_lost: int
    num_changed: int
    errors: tuple[str, ...]

    @property
    def is_survived(self) -> bool:
        """No stream shows that there was a fault, but by the time that it took."""
        return not self.errors and not self.num_lost and not self.num_changed


def add_options(parser: argparse.ArgumentParser) -> None:
    """Server and streams."""
    parser.add_argument("--model", default="smollm2", help="what octavo serve takes")
    parser.add_argument("--flags", default="", help="further flags of octavo serve, in one word")
    parser.add_argument("--streams", type=positive, default=32)
    parser.add_argument("--input-tokens", type=positive, default=128)
    parser.add_argument("--output-tokens", type=positive, default=256)
    parser.add_argument("--largest-id", type=positive, default=49000, help="prompts are ids below this")
    parser.add_argument("--seed", type=positive, default=1, help="of prompts and moments")


def measure(options: argparse.Namespace) -> Iterator[Table]:
    """What was lost, then how long it took."""
    dice = random.Random(options.seed)
    bodies = [make_body(options, dice, number) for number in range(options.streams)]
    with octavo_server(options.model, "faults", f"{FLAGS} {options.flags}") as server:
        expected = asyncio.run(run_streams(server.url, bodies))
        if errors := [stream.error for stream in expected if stream.error]:
            raise ConfigError(f"without a fault {len(errors)} streams failed, the first: {errors[0]}")
        faults = [asyncio.run(run_fault(server, bodies, expected, dice, number)) for number in range(options.rounds)]
    num_tokens = sum(len(stream.token_ids) for stream in expected)
    yield tokens_table(options.streams, num_tokens, faults)
    yield seconds_table(options.streams, faults)


def make_body(options: argparse.Namespace, dice: random.Random, number: int) -> dict[str, Any]:
    """Half of the streams are greedy, half have a seed, all have logprobs."""
    prompt = [dice.randrange(options.largest_id) for _ in range(options.input_tokens)]
    drawn = {"temperature": 1.0, "seed": number} if number % 2 else {"temperature": 0}
    return {"model": "faults", "prompt": prompt, "max_tokens": options.output_tokens, "ignore_eos": True,
            "logprobs": 0, **drawn}  # fmt: skip


# ---- a round


async def run_streams(url: str, bodies: Sequence[dict[str, Any]]) -> list[TokenStream]:
    """All at once, to their ends."""
    streams = [TokenStream() for _ in bodies]
    await asyncio.gather(*(read_stream(url, body, one) for body, one in zip(bodies, streams, strict=True)))
    return streams


async def run_fault(
    server: RunningServer,
    bodies: Sequence[dict[str, Any]],
    expected: Sequence[TokenStream],
    dice: random.Random,
    number: int,
) -> Fault:
    """The streams with one SIGKILL, then the contexts as prompts."""
    streams = [TokenStream() for _ in bodies]
    running = asyncio.gather(*(read_stream(server.url, body, one) for body, one in zip(bodies, streams, strict=True)))
    wanted = int(sum(len(stream.token_ids) for stream in expected) * dice.uniform(0.2, 0.7))
    while not running.done() and (sum(len(s.times) for s in streams) < wanted or not all(s.times for s in streams)):
        await asyncio.sleep(0.001)
    killed = time.perf_counter()
    kill_engine(server)
    await running
    waiting = [one for one in streams if one.times and one.times[-1] > killed + QUIET_SECONDS]
    contexts = [
        body["prompt"] + one.token_ids[: one.num_before(killed + QUIET_SECONDS)]
        for body, one in zip(bodies, streams, strict=True)
        if one in waiting
    ]
    lost, changed = compare(expected, streams)
    return Fault(
        tuple(next(when for when in one.times if when > killed + QUIET_SECONDS) - killed for one in waiting),
        await prefill(server.url, contexts, f"computed {number}", 1),
        await prefill(server.url, contexts, f"fresh {number}", NUM_FRESH_TOKENS),
        sum(map(len, contexts)),
        lost,
        changed,
        tuple(one.error for one in streams if one.error),
    )


def kill_engine(server: RunningServer) -> None:
    """The one that serves now. Raises ConfigError if there is none."""
    for pid in descendants(server.gateway):
        if b"engine_core" in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGKILL)
            return
    raise ConfigError("there is no engine to be killed")


async def prefill(url: str, contexts: Sequence[list[int]], salt: str, num_tokens: int) -> float:
    """Seconds until each has its first token. The salt is new, so that no cache helps."""
    body = {"model": "faults", "max_tokens": num_tokens, "temperature": 0, "ignore_eos": True, "cache_salt": salt}
    started = time.perf_counter()
    streams = await run_streams(url, [{**body, "prompt": context} for context in contexts])
    if errors := [one.error for one in streams if one.error]:
        raise ConfigError(f"a context cannot be computed: {errors[0]}")
    return max((one.times[0] for one in streams), default=started) - started


def compare(expected: Sequence[TokenStream], found: Sequence[TokenStream]) -> tuple[int, int]:
    """Tokens that are missing, and those (too many among them) that are others or have another logprob."""
    lost = changed = 0
    for one, other in zip(expected, found, strict=True):
        lost += max(0, len(one.token_ids) - len(other.token_ids))
        changed += max(0, len(other.token_ids) - len(one.token_ids))
        before, after = (zip(s.token_ids, s.logprobs, strict=False) for s in (one, other))
        changed += sum(a != b for a, b in zip(before, after, strict=False))
    return lost, changed


# ---- tables


def tokens_table(num_streams: int, num_tokens: int, faults: Sequence[Fault]) -> Table:
    """What came."""
    survived = sum(fault.is_survived for fault in faults)
    errors = [error for fault in faults for error in fault.errors]
    return Table(
        f"SIGKILL under {num_streams} streams of {num_tokens} tokens together, {len(faults)} times",
        ("faults survived", "streams failed", "tokens lost", "tokens changed"),
        [
            [
                f"{survived} of {len(faults)}",
                str(len(errors)),
                str(sum(fault.num_lost for fault in faults)),
                str(sum(fault.num_changed for fault in faults)),
            ]
        ],
        ("a token with another logprob is a changed one", *(f"a stream failed: {error}" for error in errors[:3])),
    )


def seconds_table(num_streams: int, faults: Sequence[Fault]) -> Table:
    """How long it took: a row for each fault, and one for all."""
    rows = [seconds_row(str(number), [fault]) for number, fault in enumerate(faults, start=1)]
    return Table(
        f"Seconds from SIGKILL to the next token, {num_streams} streams",
        (
            "fault",
            "first stream",
            "median stream",
            "last stream",
            "tokens restored",
            "s to compute them",
            "as new streams",
            "met",
        ),
        [*rows, seconds_row("all", faults)],
        (
            "all: median of the faults (lowest - highest)",
            "to compute: the same contexts at once as prompts of fresh requests, until the last has its token",
            "as new streams: the same contexts, with requests that go on as the streams do",
            f"met: the first stream within {TARGET_SECONDS:.0f} s, the last within that and what computing takes",
        ),
    )


def seconds_row(name: str, faults: Sequence[Fault]) -> list[str]:
    """The cells of one fault, or of several together. A fault that no stream has outlived counts as not met."""
    told = [fault for fault in faults if fault.seconds]
    if not told:
        return [name, *["-"] * 6, f"0 of {len(faults)}"]
    columns = [
        [min(fault.seconds) for fault in told],
        [statistics.median(fault.seconds) for fault in told],
        [max(fault.seconds) for fault in told],
    ]
    met = sum(
        min(fault.seconds) <= TARGET_SECONDS and max(fault.seconds) <= TARGET_SECONDS + fault.prefill_seconds
        for fault in told
    )
    show = spread if len(faults) > 1 else lambda values, scale=1.0, digits=1: f"{values[0] * scale:.{digits}f}"
    return [
        name,
        *(show(column, 1.0, 2) for column in columns),
        show([fault.num_context_tokens for fault in told], 1.0, 0),
        show([fault.prefill_seconds for fault in told], 1.0, 2),
        show([fault.fresh_seconds for fault in told], 1.0, 2),
        f"{met} of {len(faults)}",
    ]


PART = Part("faults", __doc__ or "", add_options, measure, num_rounds=10)

if __name__ == "__main__":
    sys.exit(run_part(PART, sys.argv[1:]))
