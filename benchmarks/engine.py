"""``python -m benchmarks.engine``: the engine without HTTP. Decode steps at several batches, and prompts.

The real core, scheduler and runner, put together by the engine's own wiring. Variants (quantizations) take turns, and
the read loops that a step of one sequence is compared with run between its steps.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from benchmarks.ceilings import ReadCeiling
from benchmarks.command import Part, positive, run_part
from benchmarks.local_core import LocalChannel, LocalCore
from benchmarks.report import Table
from benchmarks.step_bytes import StepBytes
from engine_core.build import build_engine
from engine_core.models.config import read_config
from ipc.config import EngineConfig
from ipc.errors import ConfigError
from ipc.messages import Ready
from kernels.native.library import Library
from loadtest.figures import spread
from observability.logging import configure
from octavo.model_source import resolve_model

PROMPT_TOKENS = 128  # before decode steps
WARM_UP_STEPS = 2
STEPS_BETWEEN_READS = 8


@dataclass(frozen=True, slots=True)
class Variant:
    """An engine that takes part."""

    name: str
    local: LocalCore
    ready: Ready
    bytes: StepBytes


@dataclass(frozen=True, slots=True)
class DecodeRound:
    """Medians over the steps, in seconds; ``context``: tokens of a sequence, on average; bytes a second of the read
    loops between them, NaN where there were none."""

    step: float
    host: float  # of that, schedule and commit
    context: float
    read: float


def add_options(parser: argparse.ArgumentParser) -> None:
    """Flags of the engine carry its names."""
    parser.add_argument("--model", default="smollm2", help="what octavo serve takes")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--quantization", nargs="+", default=["none", "int8", "int4"], help="variants that take turns")
    parser.add_argument("--kv-cache-dtype", help="default: as the engine's")
    parser.add_argument("--cpu-threads", type=positive)
    # The engine's own default would let the machine's speed decide how many tokens are decoded before a round.
    parser.add_argument("--max-num-batched-tokens", type=positive, default=2048, help="default: 2048")
    parser.add_argument("--batch", type=positive, nargs="+", help="default: 1 8 32 64")
    parser.add_argument("--prompt", type=positive, nargs="+", help="default: 128 512 4000")
    parser.add_argument("--steps", type=positive, help="decode steps of a round; default: 32")


def parse_defaults(*, model: str) -> argparse.Namespace:
    """What the command line says without flags, in bfloat16 alone, for another part that needs an engine."""
    parser = argparse.ArgumentParser()
    add_options(parser)
    return parser.parse_args(["--model", model, "--quantization", "none"])


def measure(options: argparse.Namespace) -> Iterator[Table]:
    """A table for decode and one for prompts."""
    configure("warning")
    batches = options.batch or ([1, 8] if options.quick else [1, 8, 32, 64])
    prompts = options.prompt or ([128, 512] if options.quick else [128, 512, 4000])
    num_steps = options.steps or (8 if options.quick else 32)
    variants = load_variants(options, batches, prompts, num_steps)
    ceiling = ReadCeiling(Library.load(threads=options.cpu_threads))
    yield measure_decode(variants, batches, num_steps, options.rounds, ceiling)
    yield measure_prompts(variants, prompts, options.rounds)


# ---- engines


def load_variants(options: argparse.Namespace, batches: list[int], prompts: list[int], num_steps: int) -> list[Variant]:
    """An engine each, with as much KV cache as the measurements need. Raises ConfigError."""
    folder = resolve_model(options.model)
    num_output = num_output_tokens(max(batches), num_steps, options.max_num_batched_tokens)
    longest = PROMPT_TOKENS + num_output
    wanted = {
        "max_model_len": max(longest, *(length + 1 for length in prompts)),
        "max_num_seqs": max(batches),
        "num_tokens": max(max(batches) * (longest + 16), *(length + 16 for length in prompts)),
    }
    return [load_variant(options, folder, quantization, wanted) for quantization in options.quantization]


def load_variant(options: argparse.Namespace, folder: Path, quantization: str, wanted: dict[str, int]) -> Variant:
    """``wanted``: the engine's sizes, in tokens and sequences."""
    name = options.dtype if quantization == "none" else quantization
    config = engine_config(
        model={
            "model": str(folder),
            "dtype": options.dtype,
            "quantization": None if quantization == "none" else quantization,
            "cpu_threads": options.cpu_threads,
            "max_model_len": wanted["max_model_len"],
        },
        cache={"num_kv_blocks": -(-wanted["num_tokens"] // 16), "kv_cache_dtype": options.kv_cache_dtype},
        scheduler={
            "max_num_seqs": wanted["max_num_seqs"],
            "max_num_batched_tokens": options.max_num_batched_tokens,
        },
    )
    channel = LocalChannel()
    engine = build_engine(config, channel)
    local = LocalCore(engine.core, channel, engine.build_request, engine.ready.num_token_ids)
    step_bytes = StepBytes.of(read_config(folder), options.dtype, quantization, options.kv_cache_dtype or "auto")
    return Variant(name, local, engine.ready, step_bytes)


def engine_config(**parts: dict[str, object]) -> EngineConfig:
    """What is None is left to the engine's defaults. Raises ConfigError for what it does not take."""
    said = {
        part: {name: value for name, value in fields.items() if value is not None} for part, fields in parts.items()
    }
    try:
        return msgspec.convert({**said, "transport": {"endpoint": ""}}, EngineConfig)
    except msgspec.ValidationError as error:
        raise ConfigError(f"benchmarks.engine: {error}") from error


def num_output_tokens(batch: int, num_steps: int, budget: int) -> int:
    """Of a sequence, so that the first one still runs when the last one has begun and the steps are done.

    Raises ConfigError for a budget that sequences that decode use up.
    """
    if budget <= batch:
        raise ConfigError(f"--max-num-batched-tokens {budget} leaves nothing for prompts beside --batch {batch}")
    return -(-batch * PROMPT_TOKENS // (budget - batch)) + WARM_UP_STEPS + num_steps + 8


# ---- decode


def measure_decode(
    variants: list[Variant], batches: list[int], num_steps: int, num_rounds: int, ceiling: ReadCeiling
) -> Table:
    """A row for each batch and variant."""
    rows = []
    for batch in batches:
        rounds: dict[str, list[DecodeRound]] = {variant.name: [] for variant in variants}
        for _ in range(num_rounds):
            for variant in variants:
                rounds[variant.name].append(decode(variant.local, batch, num_steps, ceiling if batch == 1 else None))
        rows += [decode_row(variant, batch, rounds[variant.name]) for variant in variants]
    return Table(
        f"Decode after {PROMPT_TOKENS} tokens, {num_steps} steps a round, {num_rounds} rounds in turns",
        ("batch", "weights", "ms a step", "tokens/s", "of it host µs", "MB a step", "GB/s", "share of reading"),
        rows,
        (
            "median of the rounds' medians (lowest - highest)",
            "host: schedule and commit; MB: weights and KV that a step must read, once each",
            f"share: of the best read loop ({ceiling.name}), which ran between the steps",
        ),
    )


def decode(
    local: LocalCore,
    batch: int,
    num_steps: int,
    ceiling: ReadCeiling | None,
    grammar: tuple[str, str] | None = None,
) -> DecodeRound:
    """One round. Sequences are aborted at its end. Raises RuntimeError if one has ended before."""
    num_output = num_output_tokens(batch, num_steps, local.core.scheduler.limits.max_num_batched_tokens)
    requests = [local.add(PROMPT_TOKENS, num_output, grammar) for _ in range(batch)]
    local.step_until(lambda: local.has_begun(requests))
    for _ in range(WARM_UP_STEPS):
        local.core.step()
    context = PROMPT_TOKENS + local.num_outputs(requests) / batch + num_steps / 2
    steps, hosts, reads = [], [], []
    times = local.core.times
    for number in range(num_steps):
        if ceiling is not None and number % STEPS_BETWEEN_READS == 0:
            reads.append(ceiling.measure())
        host, started = times.schedule.total_ns + times.commit.total_ns, time.perf_counter()
        local.core.step()
        steps.append(time.perf_counter() - started)
        hosts.append((times.schedule.total_ns + times.commit.total_ns - host) / 1e9)
    if len(local.core.scheduler.running) != batch:
        raise RuntimeError(f"only {len(local.core.scheduler.running)} of {batch} sequences were still running")
    local.abort(requests)
    read = statistics.median(reads) if reads else float("nan")
    return DecodeRound(statistics.median(steps), statistics.median(hosts), context, read)


def decode_row(variant: Variant, batch: int, rounds: list[DecodeRound]) -> list[str]:
    """The cells of one batch and variant."""
    num_bytes = [variant.bytes.of_step(batch, one.context) for one in rounds]
    speeds = [read / one.step for read, one in zip(num_bytes, rounds, strict=True)]
    shares = [speed / one.read for speed, one in zip(speeds, rounds, strict=True)]
    return [
        str(batch),
        variant.name,
        spread([one.step for one in rounds], 1e3, 2),
        spread([batch / one.step for one in rounds]),
        spread([one.host for one in rounds], 1e6, 0),
        f"{statistics.median(num_bytes) / 1e6:.0f}",
        spread(speeds, 1e-9),
        f"{spread(shares, 100, 0)} %" if batch == 1 else "-",
    ]


# ---- prompts


def measure_prompts(variants: list[Variant], prompts: list[int], num_rounds: int) -> Table:
    """A row for each length and variant: from the arrival of one prompt to its first token."""
    rows = []
    for length in prompts:
        seconds: dict[str, list[float]] = {variant.name: [] for variant in variants}
        for number in range(num_rounds + 1):
            for variant in variants:
                elapsed = prefill(variant.local, length)
                if number:  # the first one warms up
                    seconds[variant.name].append(elapsed)
        for name, own in seconds.items():
            rows.append([str(length), name, spread(own, 1e3), spread([length / elapsed for elapsed in own], 1, 0)])
    return Table(
        f"One prompt alone, {num_rounds} rounds in turns",
        ("tokens", "weights", "ms", "tokens/s"),
        rows,
        (f"at most {variants[0].ready.max_num_batched_tokens} tokens a step",),
    )


def prefill(local: LocalCore, length: int) -> float:
    """Seconds until a new prompt's first token, which is its last, too."""
    request = [local.add(length, 1)]
    started = time.perf_counter()
    local.step_until(lambda: local.has_begun(request))
    return time.perf_counter() - started


PART = Part("engine", __doc__ or "", add_options, measure, num_rounds=5)

if __name__ == "__main__":
    sys.exit(run_part(PART, sys.argv[1:]))
