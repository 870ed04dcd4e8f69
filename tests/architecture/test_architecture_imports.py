"""Which package may import what: by import-linter, by the source, and by what is loaded in a fresh process."""

import subprocess
import sys
from pathlib import Path

import pytest
from architecture_tree import ROOT, sources

# What the three packages at the bottom are made of, besides the standard library.
FOUNDATIONS = {
    "ipc": {"ipc", "msgspec", "zmq"},
    "kernels": {"kernels", "torch", "triton", "numpy"},
    "observability": {"observability", "opentelemetry", "prometheus_client", "structlog"},
}


def test_the_contracts_of_import_linter_hold() -> None:
    command = Path(sys.executable).with_name("lint-imports")
    result = subprocess.run([command, "--no-cache"], cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("package", FOUNDATIONS)
def test_a_foundation_is_made_of_few_things(package: str) -> None:
    allowed = FOUNDATIONS[package] | sys.stdlib_module_names
    found = {
        (source.name, imported)
        for source in sources()
        if source.name.startswith(f"{package}/")
        for imported in source.imports() - allowed
    }
    assert found == set()


def loaded_after(statement: str) -> set[str]:
    """Top-level modules in a fresh interpreter after the statement."""
    code = f"{statement}\nimport sys\nsys.stdout.write('\\n'.join(sys.modules))"
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=100, check=False
    )
    assert result.returncode == 0, result.stderr
    return {name.partition(".")[0] for name in result.stdout.splitlines()}


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import gateway.app", {"torch", "transformers", "engine_core", "kernels", "octavo"}),
        ("import octavo.cli", {"torch", "transformers", "engine_core", "kernels", "starlette", "uvicorn"}),
        ("import octavo.supervisor", {"torch", "transformers", "engine_core", "kernels"}),
        ("import octavo", {"torch", "transformers", "engine_core", "gateway", "tokenizers"}),
        ("import engine_core.__main__", {"starlette", "uvicorn", "transformers", "gateway", "octavo"}),
        ("import engine_core.build", {"starlette", "uvicorn", "transformers", "gateway", "octavo"}),
    ],
)
def test_a_process_does_not_load_what_it_must_not_know(statement: str, absent: set[str]) -> None:
    assert loaded_after(statement) & absent == set()


@pytest.mark.parametrize("package", ["scheduler", "kv_cache"])
def test_host_code_runs_without_torch(package: str) -> None:
    names = [path.stem for path in sorted((ROOT / "engine_core" / package).glob("*.py"))]
    modules = [f"engine_core.{package}" + ("" if name == "__init__" else f".{name}") for name in names]
    assert len(modules) > 1
    assert loaded_after(f"import {', '.join(modules)}") & {"torch", "triton", "kernels"} == set()
