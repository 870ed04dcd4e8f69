"""``python -m benchmarks.kernels``: every main operation at real shapes, native against reference, and how near it
comes to what the machine can do: a read loop of our own, a linear whose weight stays in the cache, and oneDNN.
"""

import argparse
import statistics
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch

from benchmarks.ceilings import ReadCeiling, TilePeaks
from benchmarks.command import Part, positive, run_part
from benchmarks.kernel_cases import (
    DTYPE_NAMES,
    SAMPLING,
    Backends,
    Case,
    attention_case,
    linear_case,
    norm_case,
    pack_copies,
    rotary_case,
    sampling_case,
)
from benchmarks.machine import last_cache_bytes
from benchmarks.report import Table
from benchmarks.shapes import LLAMA_1B, SMOLLM2, LinearShape, Shapes
from benchmarks.timing import time_in_turns
from ipc.errors import ConfigError
from kernels.native.build import NativeUnavailable
from kernels.native.library import Library
from kernels.native.ops import NativeOps
from kernels.ops import load
from loadtest.figures import spread

NATIVE, REFERENCE, READ, PEAK = "native", "reference", "read", "peak"
COLUMNS = ("operation", "native µs", "reference µs", "ratio", "µs a row", "GB/s", "GFLOP/s", "ceiling", "share")
NOTES = (
    "median of the rounds (lowest - highest); ratio: reference over native, round by round",
    "ceiling: what the bytes take at the read loop's speed, or the arithmetic at the tile's peak, whichever is more; "
    "share: that time over native's",
)
LINEAR_DTYPES = (torch.bfloat16, torch.int8, torch.float32)


@dataclass(frozen=True, slots=True)
class Bench:
    """What all cases are measured with."""

    backends: Backends
    read: ReadCeiling
    peaks: TilePeaks
    num_rounds: int
    seconds: float  # of one backend's turn

    def row(self, case: Case) -> list[str]:
        """Time a case beside its ceilings."""
        calls = dict(case.calls) | {READ: self.read.read}
        if case.peak:
            calls[PEAK] = self.peaks.calls[case.peak]
        times = time_in_turns(calls, self.num_rounds, self.seconds)
        return case_row(case, times, self.read.num_bytes, self.peaks.num_flops)


def case_row(case: Case, times: dict[str, list[float]], read_bytes: int, peak_flops: int) -> list[str]:
    """Cells of one case. ``times``: seconds by round of the backends, of reading ``read_bytes`` with the best loop, and
    of ``peak_flops`` at the tile's peak, if the case is about arithmetic."""
    native = times[NATIVE]
    bounds = [("memory", [seconds * case.num_bytes / read_bytes for seconds in times[READ]])]
    if PEAK in times:
        bounds.append(("arithmetic", [seconds * case.num_flops / peak_flops for seconds in times[PEAK]]))
    ceiling, bound = max(bounds, key=lambda named: statistics.median(named[1]))
    shares = [least / own for least, own in zip(bound, native, strict=True)]
    reference = times.get(REFERENCE)
    return [
        case.name,
        spread(native, 1e6),
        spread(reference, 1e6, 0) if reference else "-",
        spread([r / n for r, n in zip(reference, native, strict=True)]) if reference else "-",
        f"{statistics.median(native) * 1e6 / case.num_rows:.2f}" if case.num_rows > 1 else "-",
        f"{case.num_bytes / statistics.median(native) / 1e9:.1f}",
        f"{case.num_flops / statistics.median(native) / 1e9:.0f}" if case.num_flops else "-",
        ceiling,
        f"{spread(shares, 100, 0)} %",
    ]


# ---- the command


def add_options(parser: argparse.ArgumentParser) -> None:
    """What to measure."""
    parser.add_argument("--only", choices=tuple(GROUPS), nargs="+", default=list(GROUPS), help="kinds of operations")
    parser.add_argument("--rows", type=positive, nargs="+", help="of linears; default: 1 8 32 128 256")
    parser.add_argument("--without-reference", action="store_true", help="native kernels alone: much quicker")
    parser.add_argument("--cpu-threads", type=positive)


def measure(options: argparse.Namespace) -> Iterator[Table]:
    """A table for the ceilings and one for each kind of operation. Raises ConfigError without native kernels."""
    try:
        library = Library.load(threads=options.cpu_threads)
    except NativeUnavailable as error:
        raise ConfigError(f"benchmarks.kernels: there is nothing to measure: {error}") from error
    torch.set_num_threads(library.num_threads)  # for the reference; the native kernels have threads of their own
    backends = Backends({NATIVE: NativeOps(library)}, last_cache_bytes())
    if not options.without_reference:
        backends.ops[REFERENCE] = load(REFERENCE)
    peaks = TilePeaks(backends.ops[NATIVE], library.num_threads)
    seconds = 0.005 if options.quick else 0.03
    bench = Bench(backends, ReadCeiling(library), peaks, options.rounds, seconds)
    yield ceilings_table(bench)
    for group in options.only:
        for title, cases in GROUPS[group](bench, options):
            yield Table(title, COLUMNS, [bench.row(case) for case in cases], NOTES)


def ceilings_table(bench: Bench) -> Table:
    """The ceilings by themselves, and oneDNN at the same product."""
    calls = {READ: bench.read.read, **bench.peaks.calls, **bench.peaks.peers}
    times = time_in_turns(calls, bench.num_rounds, bench.seconds)
    rows = [["reading memory", bench.read.name, spread([bench.read.num_bytes / t for t in times[READ]], 1e-9), "-"]]
    for name, who in [*((name, "native") for name in bench.peaks.calls), *((name, "") for name in bench.peaks.peers)]:
        speeds = [bench.peaks.num_flops / seconds for seconds in times[name]]
        rows.append([f"linear of {bench.peaks.shape}", f"{name} {who}".strip(), "-", spread(speeds, 1e-9, 0)])
    return Table("Ceilings", ("what", "how", "GB/s", "GFLOP/s"), rows, ("the linear's weight stays in the cache",))


# ---- groups of cases: (title of a table, its cases); a case is built when it is its turn, and freed after it


Groups = Iterator[tuple[str, Iterable[Case]]]


def linear_groups(bench: Bench, options: argparse.Namespace) -> Groups:
    """The linears of a layer, and the head of the small model."""
    num_rows = options.rows or ([1, 32] if options.quick else [1, 8, 32, 128, 256])
    yield f"Linears of {SMOLLM2.name}", linears(bench, (*SMOLLM2.linears, SMOLLM2.head), num_rows)
    if not options.quick:
        yield f"Linears of {LLAMA_1B.name}", linears(bench, LLAMA_1B.linears, num_rows)


def linears(bench: Bench, shapes: Iterable[LinearShape], num_rows: Iterable[int]) -> Iterator[Case]:
    """Every dtype and number of rows; each weight is packed once."""
    for shape in shapes:
        for dtype in LINEAR_DTYPES:
            copies = pack_copies(bench.backends, shape, dtype)
            for rows in num_rows:
                yield linear_case(bench.backends, shape, dtype, rows, copies)


def row_groups(bench: Bench, options: argparse.Namespace) -> Groups:
    """Norms, rotary embedding and KV writes."""
    yield f"Operations on rows, {SMOLLM2.name}", row_cases(bench, SMOLLM2, (1, 32, 256))


def row_cases(bench: Bench, shapes: Shapes, num_rows: Iterable[int]) -> Iterator[Case]:
    """One after the other."""
    for rows in num_rows:
        yield norm_case(bench.backends, shapes, rows)
        for dtype in DTYPE_NAMES:
            yield rotary_case(bench.backends, shapes, rows, dtype)


def attention_groups(bench: Bench, options: argparse.Namespace) -> Groups:
    """Decode and chunks of prompts."""
    batches, contexts = ((1, 8), (128, 1024)) if options.quick else ((1, 8, 32), (128, 1024, 4096))
    decodes = [(batch, context - 1, 1) for context in contexts for batch in batches]
    yield f"Attention of {SMOLLM2.name}: decode, sequences at a context", attention_cases(bench, decodes)
    chunks = [(1, start, 256) for start in ((0,) if options.quick else (0, 3840))]
    yield f"Attention of {SMOLLM2.name}: chunks of a prompt", attention_cases(bench, chunks)


def attention_cases(bench: Bench, sizes: Iterable[tuple[int, int, int]]) -> Iterator[Case]:
    """``sizes``: (sequences, first position, tokens)."""
    for dtype in DTYPE_NAMES:
        for batch, start, num_tokens in sizes:
            yield attention_case(bench.backends, SMOLLM2, dtype, batch, start, num_tokens)


def sampling_groups(bench: Bench, options: argparse.Namespace) -> Groups:
    """Rows of logits."""
    cases = (sampling_case(bench.backends, SMOLLM2, kind, rows) for kind in SAMPLING for rows in (1, 32))
    yield f"Sampling from {SMOLLM2.vocab} ids", cases


GROUPS = {"linear": linear_groups, "rows": row_groups, "attention": attention_groups, "sampling": sampling_groups}

PART = Part("kernels", __doc__ or "", add_options, measure, num_rounds=5)

if __name__ == "__main__":
    sys.exit(run_part(PART, sys.argv[1:]))
