"""Runs first in every Python of a server under test and makes its faults: bad requests, a loop that hangs, a clock.

Python imports a module of this name by itself if it is on the path. What to do is said by files in CHAOS_FOLDER:
``poison.json`` (read once: prompt token -> [how, number of output tokens before it]), ``hang`` (the next step takes the
file away and never ends) and ``clock`` (seconds by which the wall clock is wrong, read each time).
"""

import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

FOLDER = Path(os.environ["CHAOS_FOLDER"])


class FaultyExecutor:
    """An engine's executor that looks at each plan before it is launched."""

    def __init__(self, executor: Any) -> None:
        self._executor = executor
        self._poison: dict[str, Any] = {}
        with contextlib.suppress(FileNotFoundError):
            self._poison = json.loads((FOLDER / "poison.json").read_text())
        self._slots: dict[int, tuple[str, int]] = {}  # how, and from which length on

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executor, name)

    def launch(self, plan: Any) -> Any:
        self._maybe_hang()
        for binding in plan.bindings:
            self._slots.pop(binding.slot, None)
            for token_id in binding.token_ids[: binding.num_prompt_tokens]:
                if (poison := self._poison.get(str(token_id))) is not None:
                    self._slots[binding.slot] = (poison[0], binding.num_prompt_tokens + poison[1])
        for entry in plan.scheduled:
            how, length = self._slots.get(entry.slot, ("", 0))
            if how and entry.end >= length:
                self._fail(how)
        return self._executor.launch(plan)

    def _maybe_hang(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            (FOLDER / "hang").unlink()
            threading.Event().wait()

    def _fail(self, how: str) -> None:
        if how == "raise":
            raise RuntimeError("a step that fails on purpose")
        os.kill(os.getpid(), getattr(signal, how))
        time.sleep(60)  # the signal comes at once, perhaps to another thread


def patch(module: ModuleType) -> None:
    """``engine_core.core``: every engine gets such an executor."""
    core: Any = module.EngineCore
    init = core.__init__

    def faulty(self: Any, scheduler: Any, executor: Any, *args: Any, **options: Any) -> None:
        init(self, scheduler, FaultyExecutor(executor), *args, **options)

    core.__init__ = faulty


class PatchAfterImport(importlib.abc.MetaPathFinder):
    """Finds the one module as it would be found without us, and patches it when it is loaded."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "engine_core.core":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run(module)
            patch(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def shift_clock() -> None:
    """The wall clock of this process follows the file; the monotonic one does not."""
    real = time.time

    def seconds() -> float:
        try:
            return real() + float((FOLDER / "clock").read_text())
        except (OSError, ValueError):
            return real()

    time.time = seconds
    time.time_ns = lambda: int(seconds() * 1e9)


sys.meta_path.insert(0, PatchAfterImport())
shift_clock()
