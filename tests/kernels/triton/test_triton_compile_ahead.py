"""The kernels compile for GPUs that are not here, fit them and do not spill; and faults of kernels are found.

In processes of their own: in this one kernels are interpreted.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kernels.ops import Ops

NOT_COMPILED = {"packed_format", "record", "kv_layout"}
"""What the table of operations has beside computations."""


def run(*command: str) -> subprocess.CompletedProcess[str]:
    root = Path(__file__).parents[3]
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        cwd=root,
        env=environment | {"PYTHONPATH": str(root)},
        check=False,
        timeout=300,
    )


@pytest.fixture(scope="module")
def planted() -> dict[str, list[str]]:
    """What is said of the planted kernels: by launch, the programs on a multiprocessor and the verdict."""
    result = run(str(Path(__file__).parent / "planted_kernels.py"))
    assert result.returncode == 0, result.stderr
    return {name: rest for name, *rest in (line.split("\t") for line in result.stdout.splitlines())}


def test_a_good_kernel_fits_and_is_compiled_once_for_all_row_counts(planted: dict[str, list[str]]) -> None:
    assert planted["same"] == ["16", "fits"]
    assert planted["other_alignment"] == ["16", "fits"]
    assert len(planted) == 5


def test_a_spill_is_found(planted: dict[str, list[str]]) -> None:
    assert re.match(r"spills: \d+ bytes of local memory, \d+ of stack", planted["spills"][1])


def test_too_much_shared_memory_is_found(planted: dict[str, list[str]]) -> None:
    assert planted["too_large"] == ["0", "525312 bytes of shared memory, a program may have 232448"]


def test_an_error_of_the_compiler_is_found(planted: dict[str, list[str]]) -> None:
    assert planted["wrong"][1].startswith("does not compile: ")
    assert "64 and 128" in planted["wrong"][1]


def test_every_operation_compiles_and_fits() -> None:
    result = run("-m", "kernels.triton.compile_ahead", "--capability", "80", "--capability", "90", "--quick")
    problems = [line for line in result.stdout.splitlines() if line.startswith("sm_")]
    assert result.returncode == 0, "\n".join(problems) + result.stderr[-2000:]
    operations = {name for name in vars(Ops) if not name.startswith("_")} - NOT_COMPILED
    for capability in ("80", "90"):
        rows = [line for line in result.stdout.splitlines() if line.startswith(f"{capability} ")]
        said = {word for row in rows for word in row.split()}
        assert operations <= said, operations - said
        assert (
            f"sm_{capability}: {sum('(torch alone)' not in row for row in rows)} kernels, 0 problems" in result.stdout
        )
    assert "fp8e4nv" not in "".join(line for line in result.stdout.splitlines() if line.startswith("80 "))


def test_interpreted_kernels_are_refused() -> None:
    root = Path(__file__).parents[3]
    command = [sys.executable, "-m", "kernels.triton.compile_ahead"]
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    result = subprocess.run(command, capture_output=True, text=True, cwd=root, env=environment, check=False)
    assert result.returncode == 2
    assert "TRITON_INTERPRET" in result.stderr
