"""Time on a device: by events where it is a GPU, by the host's clock where it is the CPU. And when it was busy."""

import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

GPU_CATEGORIES = {"kernel", "gpu_memcpy", "gpu_memset"}
CPU_CATEGORIES = {"cpu_op"}

Interval = tuple[float, float]


class Mark:
    """A moment in the order of the device's work."""

    def __init__(self, device: str) -> None:
        self._event = torch.cuda.Event(enable_timing=True) if device == "cuda" else None
        if self._event is not None:
            self._event.record()
        self._seconds = time.perf_counter()

    def seconds_to(self, later: "Mark") -> float:
        """Waits for both."""
        if self._event is None or later._event is None:
            return later._seconds - self._seconds
        later._event.synchronize()
        return self._event.elapsed_time(later._event) / 1e3


def synchronize(device: str) -> None:
    """All work is done."""
    if device == "cuda":
        torch.cuda.synchronize()


def median_seconds(run: Callable[[], object], device: str, *, warm: int = 3, repeats: int = 9) -> float:
    """Of one ``run``."""
    for _ in range(warm):
        run()
    seconds = []
    for _ in range(repeats):
        start = Mark(device)
        run()
        seconds.append(start.seconds_to(Mark(device)))
    return statistics.median(seconds)


def copy_bandwidth(device: str, num_bytes: int) -> float:
    """Bytes a second, read and written, of copies within the device's memory."""
    source = torch.randint(0, 255, (num_bytes,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * num_bytes / median_seconds(lambda: target.copy_(source), device)


def matmul_rate(device: str, size: int) -> float:
    """bfloat16 operations a second of a square product of random numbers."""
    a, b = (torch.randn(size, size, device=device).to(torch.bfloat16) for _ in range(2))
    out = torch.empty_like(a)
    return float(2 * size**3 / median_seconds(lambda: torch.mm(a, b, out=out), device))


def union_seconds(intervals: Iterable[Interval]) -> float:
    """Seconds in which at least one of them is under way."""
    total, end = 0.0, float("-inf")
    for start, stop in sorted(intervals):
        total += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return total


def busy_seconds(run: Callable[[], object], device: str) -> float:
    """Seconds of ``run`` in which the device worked: by the profiler, whose own cost is not the device's."""
    activities = [ProfilerActivity.CUDA] if device == "cuda" else [ProfilerActivity.CPU]
    with profile(activities=activities) as profiler:
        run()
        synchronize(device)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(file))
        events = json.loads(file.read_text())["traceEvents"]
    wanted = GPU_CATEGORIES if device == "cuda" else CPU_CATEGORIES
    found = [event for event in events if event.get("cat") in wanted and "dur" in event]
    return union_seconds((event["ts"] / 1e6, (event["ts"] + event["dur"]) / 1e6) for event in found)
