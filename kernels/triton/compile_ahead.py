"""Compiles what the main shapes launch, without a GPU, and says what each kernel takes of one.

    python -m kernels.triton.compile_ahead [--capability 80] [--capability 90] [--quick | --all] [--markdown]

Exit status 1 and a line for each kernel that spills more than MOST_STACK, does not fit or does not compile. Knows how
Triton specializes a launch (``triton.runtime.jit``), so that the same kernels come out as on a GPU; runs none.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, cast

import triton
from triton._utils import find_paths_if, get_iterable_path
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.errors import TritonError
from triton.runtime.jit import create_function_from_signature

from kernels.ops import Ops
from kernels.triton.launch import FIXED_OPTIONS, Launch, collect
from kernels.triton.main_shapes import ALL_CASES, MAIN_CASES, QUICK_CASES, Case, call_all
from kernels.triton.ops import TritonOps
from kernels.triton.target import Target

CAPABILITIES = (80, 90, 100)
LAST_REQUIRED = 90
"""Of newer GPUs a failure is told and does not fail: nothing here was ever run on one."""
MOST_STACK = 32
"""Bytes of a thread. The assembler may spill a few where it thinks that more programs at a time are worth more."""
NUM_MULTIPROCESSORS = 132
REGISTERS = 65536  # of a multiprocessor, as are all of these
THREADS = 2048
SHARED_BYTES = {80: 164 * 1024}
NEWER_SHARED_BYTES = 228 * 1024
RESERVED_SHARED_BYTES = 1024  # of each program

Key = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Specialization:
    """A kernel as one launch has it compiled: types, constants by place, what is known of arguments, options."""

    kernel: Any
    signature: dict[str, str]
    constants: dict[tuple[int, ...], Any]
    attributes: dict[tuple[int, ...], Any]
    options: dict[str, Any]

    @property
    def key(self) -> Key:
        """Equal for what Triton compiles once."""
        name = f"{self.kernel.__module__}.{self.kernel.__name__}"
        return name, str(self.signature), str(self.constants), str(self.attributes), str(self.options)


@dataclass(frozen=True, slots=True)
class Resources:
    """What a program takes: registers of a thread, bytes of shared memory of the program, of stack and of spills of a
    thread."""

    registers: int
    shared: int
    stack: int
    local: int


@dataclass(frozen=True, slots=True)
class Report:
    """A kernel for one capability, and the operations that launch it. ``problem``: why it will not do."""

    operations: tuple[str, ...]
    specialization: Specialization
    capability: int
    resources: Resources | None
    problem: str | None

    @property
    def num_threads(self) -> int:
        return 32 * int(self.specialization.options["num_warps"])

    @property
    def programs(self) -> int:
        """That fit on a multiprocessor at a time."""
        if self.resources is None:
            return 0
        # A warp's registers come in units of 256.
        per_warp = -(-max(self.resources.registers, 1) * 32 // 256) * 256
        by_registers = REGISTERS // (per_warp * (self.num_threads // 32))
        by_shared = shared_bytes(self.capability) // (self.resources.shared + RESERVED_SHARED_BYTES)
        return min(by_registers, by_shared, THREADS // self.num_threads, 32)


def shared_bytes(capability: int) -> int:
    """Of a multiprocessor; a program may take all but what is reserved for it."""
    return SHARED_BYTES.get(capability, NEWER_SHARED_BYTES)


def find_launches(capability: int, cases: Iterable[Case]) -> dict[str, list[Launch]]:
    """What those cases launch on a GPU of that capability, by operation."""
    found: dict[str, list[Launch]] = {}
    for case in cases:
        for batch_invariant in case.invariance:
            target = Target("compiled ahead", capability, NUM_MULTIPROCESSORS, batch_invariant)
            call_all(cast(Ops, NotingOps(TritonOps(target), found)), case)
    return found


class NotingOps:
    """Operations whose launches on meta tensors are put into ``found``, by the operation's name."""

    def __init__(self, ops: TritonOps, found: dict[str, list[Launch]]) -> None:
        self._ops, self._found = ops, found

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._ops, name)
        if not callable(attribute):
            return attribute

        def operation(*arguments: Any, **named: Any) -> Any:
            with collect() as launches:
                result = attribute(*arguments, **named)
            if name != "kv_layout":  # describes, computes nothing
                self._found.setdefault(name, []).extend(launches)
            return result

        return operation


def specialize(launch: Launch, target: GPUTarget) -> Specialization:
    """What Triton makes of a launch, by its own rules: as ``JITFunction.run`` does before it compiles, so that a GPU
    finds in Triton's cache what was compiled here."""
    kernel, backend = launch.kernel, make_backend(target)
    options = FIXED_OPTIONS | {"num_warps": launch.num_warps, "num_stages": launch.num_stages}
    named = launch.constants | options
    arguments, found, others = _binder(kernel, target)(*launch.arguments, **named)
    if unknown := set(others) - set(options):
        raise TypeError(f"{kernel.__name__} has no parameter {', '.join(sorted(unknown))}")
    if hasattr(kernel, "_pack_args"):
        _, signature, constants, attributes = kernel._pack_args(backend, named, arguments, found, others)
        return Specialization(kernel, signature, constants, attributes, options)
    # Before Triton 3.7 that is a part of ``run``, which needs a GPU.
    types, known, values = [kind for kind, _ in found], [value for _, value in found], list(arguments.values())
    constants = {
        place: get_iterable_path(values, place) for place in find_paths_if(types, lambda _, kind: kind == "constexpr")
    }
    attributes = {
        place: backend.parse_attr(get_iterable_path(known, place))
        for place in find_paths_if(known, lambda _, value: isinstance(value, str))
    }
    return Specialization(kernel, dict(zip(arguments, types, strict=True)), constants, attributes, options)


@cache
def _binder(kernel: Any, target: GPUTarget) -> Callable[..., Any]:
    binder: Callable[..., Any] = create_function_from_signature(kernel.signature, kernel.params, make_backend(target))
    return binder


def compile_one(specialization: Specialization, target: GPUTarget) -> tuple[Resources | None, str | None]:
    """(what it takes, why it will not do)."""
    source = ASTSource(
        specialization.kernel, specialization.signature, specialization.constants, specialization.attributes
    )
    options = make_backend(target).parse_options(specialization.options)
    try:
        compiled = triton.compile(source, target=target, options=options.__dict__)
    except (TritonError, RuntimeError, AssertionError, ValueError) as error:  # RuntimeError: a pass of LLVM's fails
        return None, f"does not compile: {_last_words(error)}"
    resources = read_resources(compiled.asm["cubin"], compiled.metadata.shared)
    limit = shared_bytes(target.arch) - RESERVED_SHARED_BYTES
    if resources.shared > limit:
        return resources, f"{resources.shared} bytes of shared memory, a program may have {limit}"
    if resources.local + resources.stack > MOST_STACK:
        return resources, f"spills: {resources.local} bytes of local memory, {resources.stack} of stack"
    return resources, None


def _last_words(error: BaseException) -> str:
    """The cause in one line: before it come source lines and a caret."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip(" ^")]
    return f"{type(error).__name__}: {lines[-1] if lines else ''}"


def read_resources(cubin: bytes, dynamic_shared: int) -> Resources:
    """From the compiled kernel, by the cuobjdump that Triton brings; ``dynamic_shared``: bytes given at launch."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(cubin)
        command = [triton.knobs.nvidia.cuobjdump.path, "--dump-resource-usage", str(file)]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    usage = {name: int(value) for name, value in re.findall(r"\b(REG|STACK|SHARED|LOCAL):(\d+)", said)}
    if not usage:
        raise ValueError(f"cuobjdump says no resources: {said!r}")
    return Resources(usage["REG"], usage["SHARED"] + dynamic_shared, usage["STACK"], usage["LOCAL"])


def compile_launches(found: dict[str, list[Launch]], capability: int) -> list[Report]:
    """Each distinct kernel of the launches once, those that take long first."""
    target = GPUTarget("cuda", capability, 32)
    operations: defaultdict[Key, dict[str, None]] = defaultdict(dict)
    distinct: dict[Key, Specialization] = {}
    for operation, launches in found.items():
        for launch in launches:
            specialization = specialize(launch, target)
            distinct.setdefault(specialization.key, specialization)
            operations[specialization.key][operation] = None
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:  # the compiler works without the GIL
        results = pool.map(lambda each: compile_one(each, target), distinct.values())
        return [
            Report(tuple(operations[key]), distinct[key], capability, *result)
            for key, result in zip(distinct, results, strict=True)
        ]


# ---- the table

HEADS = (
    "sm",
    "operation",
    "kernel",
    "constants",
    "warps",
    "stages",
    "registers",
    "shared",
    "spills",
    "programs/SM",
    "",
)


def rows_of(reports: Iterable[Report]) -> list[tuple[str, ...]]:
    """One for each report, as HEADS has it."""
    rows: list[tuple[str, ...]] = []
    for report in sorted(reports, key=lambda report: (report.operations, report.specialization.kernel.__name__)):
        specialization, resources = report.specialization, report.resources
        numbers = ("", "", "")
        if resources is not None:
            numbers = (str(resources.registers), str(resources.shared), str(resources.local + resources.stack))
        rows.append(
            (
                str(report.capability),
                " ".join(report.operations),
                specialization.kernel.__name__,
                describe(specialization),
                str(specialization.options["num_warps"]),
                str(specialization.options["num_stages"]),
                *numbers,
                str(report.programs),
                report.problem or "",
            )
        )
    return rows


def describe(specialization: Specialization) -> str:
    """What tells the specializations of one kernel apart: pointers' types, and constants that say something."""
    kinds = [kind.removeprefix("*") for kind in specialization.signature.values() if kind.startswith("*")]
    names = list(specialization.signature)
    said = {names[place[0]]: value for place, value in specialization.constants.items()}
    constants = [f"{name}={value}" for name, value in said.items() if value not in (None, False, "")]
    return " ".join([",".join(kinds), *constants])


def table_of(rows: Sequence[tuple[str, ...]], *, markdown: bool) -> list[str]:
    """Lines."""
    if markdown:
        return [f"| {' | '.join(row)} |" for row in (HEADS, ("---",) * len(HEADS), *rows)]
    widths = [max(len(row[column]) for row in (HEADS, *rows)) for column in range(len(HEADS))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in (HEADS, *rows)
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m kernels.triton.compile_ahead", description=__doc__)
    parser.add_argument("--capability", type=int, action="append", help="80, 90 or 100; repeatable; default: all")
    extent = parser.add_mutually_exclusive_group()
    extent.add_argument("--quick", action="store_true", help="the smallest model at two sizes")
    extent.add_argument("--all", action="store_true", help="every model in every arithmetic: minutes")
    parser.add_argument("--markdown", action="store_true", help="the table in Markdown")
    options = parser.parse_args(arguments)
    if triton.knobs.runtime.interpret:
        sys.stderr.write("TRITON_INTERPRET is set: interpreted kernels cannot be compiled\n")
        return 2
    cases = QUICK_CASES if options.quick else ALL_CASES if options.all else MAIN_CASES
    status = 0
    for capability in options.capability or CAPABILITIES:
        found = find_launches(capability, cases)
        reports = compile_launches(found, capability)
        alone = [operation for operation, launches in found.items() if not launches]
        rows = rows_of(reports)
        rows += [(str(capability), name, "(torch alone)", *[""] * (len(HEADS) - 3)) for name in alone]
        problems = problems_of(reports)
        lines = [*table_of(rows, markdown=options.markdown), "", *problems]
        lines.append(f"sm_{capability}: {len(reports)} kernels, {len(problems)} problems")
        sys.stdout.write("\n".join(lines) + "\n\n")
        sys.stdout.flush()
        if problems and capability <= LAST_REQUIRED:
            status = 1
    return status


def problems_of(reports: Iterable[Report]) -> list[str]:
    """A line for each kernel that will not do."""
    return [
        f"sm_{report.capability} {report.specialization.kernel.__name__} [{describe(report.specialization)}]: "
        f"{report.problem}{'' if report.capability <= LAST_REQUIRED else ' (told, not required)'}"
        for report in reports
        if report.problem is not None
    ]


if __name__ == "__main__":
    sys.exit(main())
