"""``python -m benchmarks.grammars``: the grammar backends beside each other, and what a grammar costs a decode step.

A backend that is not installed is left out. Masks are made along a text that fits the grammar, token by token.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import msgspec
import tokenizers

from benchmarks.command import Part, positive, run_part
from benchmarks.engine import decode, load_variants
from benchmarks.engine import parse_defaults as engine_defaults
from benchmarks.report import Table
from engine_core import registry
from engine_core.models.config import read_config
from engine_core.structured_output.backend import CompiledGrammar, GrammarBackend
from engine_core.structured_output.constraint import Constraint
from ipc.grammar import JsonGrammar
from ipc.params import SamplingParams
from loadtest.figures import spread
from observability.logging import configure
from octavo.model_source import resolve_model

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "email": {"type": "string", "pattern": r"^[a-z]+@[a-z]+\.com$"},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["name", "age", "email", "tags"],
    "additionalProperties": False,
}
ADA = {"name": "Ada Lovelace of London", "age": 36, "email": "ada@example.com", "tags": ["writer", "first of them"]}
PROSE = "The quick brown fox jumps over the lazy dog, and then some more of it."
ENDLESS = {"type": "array", "items": {"type": "object", "properties": {"a": {"type": "string"}}}, "minItems": 10_000}


def json_source(schema: object) -> str:
    """The wire's source of a schema."""
    return msgspec.json.encode(JsonGrammar(json.dumps(schema))).decode()


CASES = {
    "JSON of a schema": ("json_schema", json_source(PERSON), json.dumps(ADA)),
    "any JSON object": ("json_schema", json_source({"type": "object"}), json.dumps(ADA)),
    "string of at most 200": ("json_schema", json_source({"type": "string", "maxLength": 200}), json.dumps(PROSE)),
    "regex [A-Za-z ,.]+": ("regex", "[A-Za-z ,.]+", PROSE),
    "regex [A-Za-z ,.]{10,400}": ("regex", "[A-Za-z ,.]{10,400}", PROSE),
}


@dataclass(slots=True)
class Figures:
    """Seconds, one entry a round: compiling, and the median, mean and longest mask."""

    compiled: list[float] = field(default_factory=list)
    median: list[float] = field(default_factory=list)
    mean: list[float] = field(default_factory=list)
    longest: list[float] = field(default_factory=list)


def add_options(parser: argparse.ArgumentParser) -> None:
    """The model decides about the tokenizer."""
    parser.add_argument("--model", default="smollm2", help="what octavo serve takes")
    parser.add_argument("--batch", type=positive, default=32, help="sequences of the decode steps; default: 32")
    parser.add_argument("--steps", type=positive, help="decode steps of a round; default: 48")


def measure(options: argparse.Namespace) -> Iterator[Table]:
    """A table of the backends and one of decode steps."""
    configure("warning")
    folder = resolve_model(options.model)
    yield measure_backends(folder, options.rounds)
    yield measure_steps(options)


def measure_backends(folder: Path, num_rounds: int) -> Table:
    """A row for each backend and case."""
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    vocab_size, rows, notes = read_config(folder).vocab_size, [], []
    for name in registry.names("grammar_backend"):
        if find_spec(name) is None:
            notes.append(f"{name} is not installed")
            continue
        started = time.perf_counter()
        backend: GrammarBackend = registry.load("grammar_backend", name)(folder / "tokenizer.json", vocab_size)
        backend.compile("regex", "a")
        notes.append(f"{name}: {time.perf_counter() - started:.2f} s from its import to the first grammar")
        for case, (kind, source, text) in CASES.items():
            figures = Figures()
            ids = tokenizer.encode(text, add_special_tokens=False).ids
            for _ in range(num_rounds):
                started = time.perf_counter()
                compiled = backend.compile(kind, source)
                figures.compiled.append(time.perf_counter() - started)
                follow(compiled, ids, vocab_size, figures)
            cells = (figures.median, figures.mean, figures.longest)
            rows.append([name, case, spread(figures.compiled, 1e3), *(spread(one, 1e6, 0) for one in cells)])
    columns = ("backend", "grammar", "compile ms", "mask µs, median", "mean", "longest")
    return Table(f"Grammar backends, {num_rounds} rounds", columns, rows, notes)


def follow(compiled: CompiledGrammar, ids: list[int], vocab_size: int, figures: Figures) -> None:
    """One output, a mask before each token."""
    constraint = Constraint(compiled, SamplingParams(eos_token_ids=(0,)), -(-vocab_size // 32) * 4)
    seconds = []
    for token_id in ids:
        started = time.perf_counter()
        constraint.mask()
        seconds.append(time.perf_counter() - started)
        constraint.accept((token_id,))
    figures.median.append(statistics.median(seconds))
    figures.mean.append(statistics.mean(seconds))
    figures.longest.append(max(seconds))


def measure_steps(options: argparse.Namespace) -> Table:
    """Free and constrained rounds take turns."""
    num_steps = options.steps or (8 if options.quick else 48)
    engine = engine_defaults(model=options.model)
    (variant,) = load_variants(engine, [options.batch], [1], num_steps)
    grammars = {"free": None, "JSON": ("json_schema", json_source(ENDLESS))}
    rounds: dict[str, list[float]] = {name: [] for name in grammars}
    for _ in range(options.rounds):
        for name, grammar in grammars.items():
            rounds[name].append(decode(variant.local, options.batch, num_steps, None, grammar).step)
    ratios = [free / under for free, under in zip(rounds["free"], rounds["JSON"], strict=True)]
    rows = [[name, spread(own, 1e3, 2), spread([options.batch / one for one in own])] for name, own in rounds.items()]
    return Table(
        f"Decode of {options.batch} sequences, {num_steps} steps a round, {options.rounds} rounds in turns",
        ("output", "ms a step", "tokens/s"),
        rows,
        (f"tokens/s under the grammar over free: {spread(ratios, digits=3)}",),
    )


PART = Part("grammars", __doc__ or "", add_options, measure, num_rounds=5)

if __name__ == "__main__":
    sys.exit(run_part(PART, sys.argv[1:]))
