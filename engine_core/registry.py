"""Finding a component by name: adding the second of anything is adding one file.

A module of a kind's package is an entry of that kind when its ``__all__`` lists exactly one object. Other
packages add entries through the entry point group ``octavo.<kind>``. Imports nothing until asked.
"""

import ast
import pkgutil
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ipc.errors import ConfigError

PACKAGES = {
    "architecture": "engine_core.models",
    "device": "engine_core.device",
    "executor": "engine_core.executor",
    "grammar_backend": "engine_core.structured_output",
    "policy": "engine_core.scheduler",
}


def load(kind: str, name: str) -> Any:
    """The object that the entry ``name`` of ``kind`` exports; our own entries come before other packages'. A hyphen is
    as good as an underscore, as in flags.

    Raises ConfigError, listing the known names, if there is none.
    """
    module = name.replace("-", "_")
    exported = _exported_name(PACKAGES[kind], module)
    if exported is not None:
        return getattr(import_module(f"{PACKAGES[kind]}.{module}"), exported)
    external = _external(kind).get(module)
    if external is not None:
        return external.load()
    raise ConfigError(f"unknown {kind} {name!r}; known: {', '.join(names(kind)) or 'none'}")


def names(kind: str) -> list[str]:
    """The names that ``load`` knows: our own in alphabetical order, then those of other packages."""
    package = import_module(PACKAGES[kind])
    modules = sorted(module.name for module in pkgutil.iter_modules(package.__path__))
    own = [name for name in modules if _exported_name(PACKAGES[kind], name) is not None]
    return own + sorted(set(_external(kind)) - set(own))


def _external(kind: str) -> dict[str, EntryPoint]:
    return {entry.name.replace("-", "_"): entry for entry in entry_points(group=f"octavo.{kind}")}


def _exported_name(package: str, name: str) -> str | None:
    """The one name in the module's ``__all__``, read from its source; None if the module is not an entry."""
    if not name.isidentifier():  # names come from flags and config files
        return None
    spec = find_spec(f"{package}.{name}")
    if spec is None or spec.origin is None:
        return None
    for node in ast.parse(Path(spec.origin).read_bytes()).body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            exported = ast.literal_eval(node.value)
            return str(exported[0]) if len(exported) == 1 else None
    return None
