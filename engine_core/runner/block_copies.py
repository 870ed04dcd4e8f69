"""Copies of whole blocks: inside the device's caches, and between them and the host's memory below them.

The plan's pairs hold one after the other; here they are put into runs whose copies may happen at once. Knows bytes
and ids, not what a block means.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from engine_core.device.queue import Stage
from kernels.ops import Ops


@dataclass(slots=True)
class CopyRun:
    """Copies between two memories, none of which reads or writes what another one writes.

    ``rows``: of copies inside the device, i64 sources and destinations in [layers · blocks].
    """

    from_host: bool
    to_host: bool
    sources: list[int] = field(default_factory=list)
    destinations: list[int] = field(default_factory=list)
    rows: tuple[Tensor, Tensor] | None = None


def split_into_runs(copies: Iterable[tuple[int, int]], num_blocks: int) -> list[CopyRun]:
    """(source, destination) pairs in order → runs in order. Ids from ``num_blocks`` on are the host's, which a run
    counts from 0. Raises ValueError for a copy from host to host."""
    runs: list[CopyRun] = []
    written: set[int] = set()
    for source, destination in copies:
        kind = (source >= num_blocks, destination >= num_blocks)
        if all(kind):
            raise ValueError("the host tier copies nothing inside itself")
        run = runs[-1] if runs else None
        if run is None or (run.from_host, run.to_host) != kind or source in written or destination in written:
            run = CopyRun(*kind)
            runs.append(run)
            written.clear()
        written.add(destination)
        run.sources.append(source - num_blocks * kind[0])
        run.destinations.append(destination - num_blocks * kind[1])
    return runs


@dataclass(frozen=True, slots=True)
class CopyPlanner:
    """``num_blocks``: of the pool; ids from there on are the host's. ``blocks_per_cache``: of a layer's cache, which
    may have some that nobody is given."""

    num_layers: int
    num_blocks: int
    blocks_per_cache: int

    def __call__(self, copies: Iterable[tuple[int, int]], stage: Stage) -> list[CopyRun]:
        """A plan's copies as runs, ready for the device."""
        runs = split_into_runs(copies, self.num_blocks)
        for run in runs:
            if not run.from_host and not run.to_host:
                run.rows = stage.put(self._in_all_layers(run.sources)), stage.put(self._in_all_layers(run.destinations))
        return runs

    def _in_all_layers(self, blocks: list[int]) -> "np.ndarray[tuple[int, ...], np.dtype[np.int64]]":
        first = np.arange(self.num_layers, dtype=np.int64) * self.blocks_per_cache
        return (first[:, None] + np.array(blocks, np.int64)).reshape(-1)


class BlockCopier:
    """``caches`` u8 [layers, blocks, bytes]; ``host`` u8 [host blocks, layers, bytes]: a block is in one piece there,
    since it goes to disk as one."""

    def __init__(self, caches: Tensor, host: Tensor, ops: Ops) -> None:
        self._caches, self._host, self._ops = caches, host, ops

    def __call__(self, runs: list[CopyRun]) -> None:
        """On the device queue, in order."""
        for run in runs:
            if run.rows is not None:
                self._ops.copy_blocks(self._caches.flatten(0, 1), *run.rows)
                continue
            for source, destination in zip(run.sources, run.destinations, strict=True):
                if run.to_host:
                    self._host[destination].copy_(self._caches[:, source], non_blocking=True)
                else:
                    self._caches[:, destination].copy_(self._host[source], non_blocking=True)
