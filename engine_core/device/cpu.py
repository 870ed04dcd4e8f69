"""The CPU as a device: one compute thread when steps overlap, else the caller's own."""

import math
import mmap
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import torch
from torch import Tensor

from engine_core.device.staging import DirectStage

__all__ = ["CpuDevice"]

T = TypeVar("T")
LARGE_PAGE = 2 * 1024**2


@dataclass(frozen=True, slots=True)
class CpuResult(Generic[T]):
    """A closure's value."""

    future: "Future[T]"

    def result(self) -> T:
        """Wait; raises what the closure raised."""
        return self.future.result()

    def in_order(self) -> T:
        """The compute thread has come to this closure before it comes to one that asks."""
        return self.future.result()


class CpuDevice:
    """``overlap``: closures run on a thread of their own, in order. ``graphs`` mean nothing here."""

    torch_device = torch.device("cpu")
    name = "CPU"
    has_own_memory = False
    overlaps_by_default = False  # all cores compute: there is nothing to hide the scheduler behind

    def __init__(self, *, overlap: bool, graphs: bool = True) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="compute") if overlap else None

    def launch(self, closure: Callable[[], T]) -> CpuResult[T]:
        """Queue a closure, or run it now."""
        if self._pool is not None:
            return CpuResult(self._pool.submit(closure))
        future: Future[T] = Future()
        future.set_result(closure())  # what it raises, it raises here: there is no step in between
        return CpuResult(future)

    def stage(self) -> DirectStage:
        """The device reads the host's memory."""
        return DirectStage()

    def to_host(self, tensor: Tensor) -> Tensor:
        """It is there."""
        return tensor

    def empty(self, shape: tuple[int, ...]) -> Tensor:
        """u8, uninitialized, in large pages where the system has them: fewer address translations for what is read
        in every step."""
        num_bytes = math.prod(shape)
        if num_bytes < LARGE_PAGE or not hasattr(mmap, "MADV_HUGEPAGE"):
            return torch.empty(shape, dtype=torch.uint8)
        memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with suppress(OSError):  # a kernel built without large pages
            memory.madvise(mmap.MADV_HUGEPAGE)
        return torch.frombuffer(memory, dtype=torch.uint8).view(shape)

    def empty_on_host(self, shape: tuple[int, ...]) -> Tensor:
        """Its own memory is the host's."""
        return self.empty(shape)

    def free_memory_bytes(self) -> int:
        """What the kernel calls available, within the cgroup's limit."""
        return free_memory_bytes()

    def peak_memory_bytes(self, run: Callable[[], object]) -> int:
        """Nobody counts."""
        return 0

    def graph_recorder(self) -> None:
        """The native kernels record by themselves."""

    def close(self) -> None:
        """Wait for what is queued."""
        if self._pool is not None:
            self._pool.shutdown()


def free_memory_bytes() -> int:
    """MemAvailable, or what the cgroup leaves if that is less; on systems without /proc half of the memory."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    fields = dict(line.split(":", 1) for line in lines)
    available = int(fields["MemAvailable"].split()[0]) * 1024
    limit, used = _read_number("/sys/fs/cgroup/memory.max"), _read_number("/sys/fs/cgroup/memory.current")
    return available if limit is None or used is None else max(0, min(available, limit - used))


def _read_number(path: str) -> int | None:
    try:
        return int(Path(path).read_text())
    except (OSError, ValueError):
        return None  # not there, or "max"
