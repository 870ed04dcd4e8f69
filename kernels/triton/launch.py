"""Launches every kernel: with the options that its bits depend on, or, for those who compile ahead, not at all.

On meta tensors nothing can run: a launch is noted in the open collection, so that what is compiled ahead of time is
what the operations would launch.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from torch import Tensor

Grid = tuple[int, ...]

FIXED_OPTIONS = {"enable_fp_fusion": False}
"""Fused multiply-adds would give a product and a sum other bits in one kernel than in two."""


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel with what it would be called with: positional ``arguments`` and, by name, ``constants``."""

    kernel: Any
    arguments: tuple[Any, ...]
    constants: dict[str, Any]
    num_warps: int
    num_stages: int


_collection: ContextVar[list[Launch] | None] = ContextVar("_collection", default=None)


@contextmanager
def collect() -> Iterator[list[Launch]]:
    """Launches on meta tensors within are put into the list."""
    launches: list[Launch] = []
    token = _collection.set(launches)
    try:
        yield launches
    finally:
        _collection.reset(token)


def launch(kernel: Any, grid: Grid, *arguments: Any, num_warps: int = 4, num_stages: int = 2, **constants: Any) -> None:
    """Run ``kernel`` on ``grid``; ``constants`` are its constexpr parameters. A grid without programs runs nothing."""
    if any(isinstance(argument, Tensor) and argument.is_meta for argument in arguments):
        launches = _collection.get()
        if launches is None:
            raise RuntimeError("a kernel was launched on meta tensors, and nobody collects launches")
        launches.append(Launch(kernel, arguments, constants, num_warps, num_stages))
        return
    if 0 in grid:
        return
    kernel[grid](*arguments, **constants, num_warps=num_warps, num_stages=num_stages, **FIXED_OPTIONS)
