"""The load test knows servers by HTTP alone, and locust, which patches sockets, stays out of this process."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "loadtest").rglob("*.py"))
OURS = {"octavo", "gateway", "engine_core", "ipc", "kernels", "observability", "benchmarks", "tests"}
OF_LOCUST = {"loadtest/__main__.py", "loadtest/locustfile.py", "loadtest/mix/users.py"}


def imports(path: Path) -> set[str]:
    """Top-level names, wherever they stand."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            found.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.partition(".")[0])
    return found


def test_it_is_made_of_the_standard_library_and_locust() -> None:
    others = {
        path.relative_to(ROOT).as_posix(): imports(path) - sys.stdlib_module_names - {"loadtest"} for path in SOURCES
    }
    assert not any(found & OURS for found in others.values())
    assert {name: found for name, found in others.items() if found and name not in OF_LOCUST} == {}
    assert {name for name in OF_LOCUST if "locust" in others[name]} == OF_LOCUST
    assert set().union(*others.values()) == {"locust", "gevent"}


def test_only_what_is_of_locust_loads_it() -> None:
    modules = [
        path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".").removesuffix(".__init__")
        for path in SOURCES
        if path.relative_to(ROOT).as_posix() not in OF_LOCUST
    ]
    code = f"import {', '.join(modules)}\nimport sys\nassert not {{'gevent', 'locust'}} & set(sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_this_process_is_as_it_was(request: pytest.FixtureRequest) -> None:
    assert {"gevent", "locust"} & set(sys.modules) == set()
    assert not request.config.pluginmanager.hasplugin("pytest_locust.plugin")
    assert not request.config.pluginmanager.hasplugin("locust")


def test_the_modules_say_what_they_are() -> None:
    assert [path.name for path in SOURCES if not ast.get_docstring(ast.parse(path.read_bytes()))] == []
