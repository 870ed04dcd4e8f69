"""Copies of whole blocks: inside the device's caches, and between them and the host's memory below them.

The plan's pairs hold one after the other; here they are put into runs whose copies may happen at once. Knows bytes
and ids, not what a block means.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.ops import Ops


@dataclass(slots=True)
class CopyRun:
    """Copies between two memories, none of which reads or writes what another one writes."""

    from_host: bool
    to_host: bool
    sources: list[int]
    destinations: list[int]


def split_into_runs(copies: Iterable[tuple[int, int]], num_blocks: int) -> list[CopyRun]:
    """(source, destination) pairs in order → runs in order. Ids from ``num_blocks`` on are the host's, which a run
    counts from 0."""
    runs: list[CopyRun] = []
    written: set[int] = set()
    for source, destination in copies:
        kind = (source >= num_blocks, destination >= num_blocks)
        run = runs[-1] if runs else None
        if run is None or (run.from_host, run.to_host) != kind or source in written or destination in written:
            run = CopyRun(*kind, [], [])
            runs.append(run)
            written.clear()
        written.add(destination)
        run.sources.append(source - num_blocks * kind[0])
        run.destinations.append(destination - num_blocks * kind[1])
    return runs


class BlockCopier:
    """``caches`` u8 [layers, blocks, bytes]; ``host`` u8 [host blocks, layers, bytes]: a block is in one piece there,
    since it goes to disk as one."""

    def __init__(self, caches: Tensor, host: Tensor, ops: Ops) -> None:
        self._caches, self._host, self._ops = caches, host, ops

    def __call__(self, runs: list[CopyRun]) -> None:
        """On the device queue, in order."""
        for run in runs:
            if run.to_host and run.from_host:
                raise ValueError("the host tier copies nothing inside itself")
            if run.to_host:
                for source, destination in zip(run.sources, run.destinations, strict=True):
                    self._host[destination].copy_(self._caches[:, source], non_blocking=True)
            elif run.from_host:
                for source, destination in zip(run.sources, run.destinations, strict=True):
                    self._caches[:, destination].copy_(self._host[source], non_blocking=True)
            else:
                device = self._caches.device
                sources = torch.tensor(run.sources, dtype=torch.int64, device=device)
                destinations = torch.tensor(run.destinations, dtype=torch.int64, device=device)
                for cache in self._caches.unbind():
                    self._ops.copy_blocks(cache, sources, destinations)
