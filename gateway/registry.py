"""Finding the gateway's parsers by name: adding the second of anything is adding one file.

A module of a kind's package is an entry of that kind when its ``__all__`` lists exactly one object. Other
packages add entries through the entry point group ``octavo.<kind>``.
"""

import pkgutil
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from ipc.errors import ConfigError

PACKAGES = {
    "tool_call_parsers": "gateway.tool_calls",
    "reasoning_parsers": "gateway.reasoning",
}


def load(kind: str, name: str) -> Any:
    """The object that the entry ``name`` of ``kind`` exports; our own entries come before other packages'.

    Raises ConfigError, listing the known names, if there is none.
    """
    own, external = _own(kind), _external(kind)
    if name in own:
        return own[name]
    if name in external:
        return external[name].load()
    raise ConfigError(f"unknown {kind.removesuffix('s').replace('_', ' ')} {name!r}; known: {', '.join(names(kind))}")


def names(kind: str) -> list[str]:
    """The names that ``load`` knows: our own in alphabetical order, then those of other packages."""
    own = _own(kind)
    return sorted(own) + sorted(set(_external(kind)) - set(own))


def _own(kind: str) -> dict[str, Any]:
    package = import_module(PACKAGES[kind])
    modules = [import_module(f"{package.__name__}.{found.name}") for found in pkgutil.iter_modules(package.__path__)]
    return {
        module.__name__.rpartition(".")[2]: getattr(module, module.__all__[0])
        for module in modules
        if len(getattr(module, "__all__", ())) == 1
    }


def _external(kind: str) -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=f"octavo.{kind}")}
