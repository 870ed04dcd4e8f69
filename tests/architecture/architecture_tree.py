"""The source tree as data: which files there are, parsed once."""

import ast
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("octavo", "gateway", "engine_core", "ipc", "kernels", "observability")


@dataclass(frozen=True, slots=True)
class Source:
    """One module of ours."""

    name: str  # relative to the root, with slashes
    tree: ast.Module

    def imports(self) -> set[str]:
        """Top-level names of what it imports, wherever in the file."""
        found: set[str] = set()
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                found.update(alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module.partition(".")[0])
        return found


@cache
def sources() -> tuple[Source, ...]:
    """Every module of the six packages."""
    paths = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    return tuple(Source(path.relative_to(ROOT).as_posix(), ast.parse(path.read_bytes())) for path in paths)
