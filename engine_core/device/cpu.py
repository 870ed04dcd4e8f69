"""The CPU as a device: one compute thread when steps overlap, else the caller's own."""

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import torch

__all__ = ["CpuDevice"]

T = TypeVar("T")


class CpuDevice:
    """``overlap``: closures run on a thread of their own, in order."""

    torch_device = torch.device("cpu")
    overlaps_by_default = False  # all cores compute: there is nothing to hide the scheduler behind

    def __init__(self, *, overlap: bool) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="compute") if overlap else None

    def launch(self, closure: Callable[[], T]) -> "Future[T]":
        """Queue a closure, or run it now."""
        if self._pool is not None:
            return self._pool.submit(closure)
        future: Future[T] = Future()
        future.set_result(closure())  # what it raises, it raises here: there is no step in between
        return future

    def free_memory_bytes(self) -> int:
        """What the kernel calls available, within the cgroup's limit."""
        return free_memory_bytes()

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
