"""Servers of a test's own, of whatever kind: all of one model, none of them left afterwards."""

from pathlib import Path
from typing import Any, Generic, TypeVar

from e2e_process import ServerProcess

TINY = ("--load-format", "dummy", "--dtype", "float32", "--served-model-name", "tiny")
PATIENT = ("--max-num-queued-reqs", "4096", "--max-queue-wait", "86400")
Server = TypeVar("Server", bound=ServerProcess)
LOG_CHARACTERS = 6000


class Starter(Generic[Server]):
    """``start(*flags)`` gives a server of ``kind`` that serves ``model`` with ``arguments`` and these flags."""

    def __init__(self, kind: type[Server], folder: Path, model: Path, *arguments: str) -> None:
        self._kind, self._folder, self._model, self._arguments = kind, folder, model, arguments
        self.started: list[Server] = []

    def __call__(self, *flags: str, **options: Any) -> Server:
        folder = self._folder / f"server-{len(self.started)}"
        self.started.append(self._kind(folder, str(self._model), *self._arguments, *flags, **options))
        return self.started[-1]

    def __enter__(self) -> "Starter[Server]":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.started:
            process.kill()


def log_sections(item: Any) -> list[tuple[str, str]]:
    """For the report of a failed test: the end of the log of each server that it used."""
    sections = []
    for name, value in getattr(item, "funcargs", {}).items():
        for process in value.started if isinstance(value, Starter) else [value]:
            if isinstance(process, ServerProcess):
                sections.append((f"log of {name}", process.log[-LOG_CHARACTERS:]))
    return sections
