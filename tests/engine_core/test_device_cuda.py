"""The CUDA device and its recorder on a double of torch.cuda: order of calls, errors, threads. No GPU is needed."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from inspect import signature
from typing import Any

import pytest
import torch

from engine_core.device import cuda
from engine_core.device.cuda import CudaDevice
from engine_core.device.cuda_graphs import CudaGraphRecorder
from engine_core.device.queue import OutOfMemory


@dataclass
class FakeCuda:
    """What was called, in order. Streams have numbers, graphs what was launched while they were recorded."""

    calls: list[tuple[Any, ...]] = field(default_factory=list)
    num_streams: int = 0
    allocated: int = 1000
    peak: int = 0
    is_capturing: bool = False
    local: threading.local = field(default_factory=threading.local)

    def note(self, *call: Any) -> None:
        self.calls.append(call)

    @property
    def current(self) -> int:
        return getattr(self.local, "stream", 0)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    fake = FakeCuda()

    class Stream:
        def __init__(self, device: torch.device) -> None:
            fake.num_streams += 1
            self.number = fake.num_streams

        def synchronize(self) -> None:
            fake.note("synchronize", self.number)

    class Event:
        def record(self, stream: Stream | None = None) -> None:
            fake.note("record", fake.current if stream is None else stream.number)

        def wait(self) -> None:
            fake.note("wait", fake.current)

        def synchronize(self) -> None:
            fake.note("synchronize event")

    class Graph:
        def capture_begin(self, pool: object = None, capture_error_mode: str = "global") -> None:
            fake.note("begin", fake.current, capture_error_mode)
            fake.is_capturing = True

        def capture_end(self) -> None:
            fake.is_capturing = False
            fake.note("end")

        def replay(self) -> None:
            fake.note("replay", fake.current)

    @contextmanager
    def stream(wanted: Stream) -> Iterator[None]:
        before, fake.local.stream = fake.current, wanted.number
        yield
        fake.local.stream = before

    def set_stream(wanted: Stream) -> None:
        fake.local.stream = wanted.number

    @contextmanager
    def on_device(device: torch.device) -> Iterator[None]:
        yield

    replacements: dict[str, Callable[..., Any]] = {
        "Stream": Stream,
        "Event": Event,
        "CUDAGraph": Graph,
        "stream": stream,
        "set_stream": set_stream,
        "device": on_device,
        "current_device": lambda: 0,
        "get_device_name": lambda device=None: "NVIDIA Double",
        "graph_pool_handle": lambda: (0, 1),
        "empty_cache": lambda: fake.note("empty cache"),
        "mem_get_info": lambda device=None: (5000, 9000),
        "memory_reserved": lambda device=None: 1700,
        "memory_allocated": lambda device=None: fake.allocated,
        "max_memory_allocated": lambda device=None: fake.peak,
        "reset_peak_memory_stats": lambda device=None: fake.note("reset peak"),
        "synchronize": lambda device=None: fake.note("synchronize device"),
    }
    for name, value in replacements.items():
        assert hasattr(torch.cuda, name), "torch has no such thing"
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(cuda, "_empty_pinned", lambda size: torch.empty(size, dtype=torch.uint8))
    return fake


def test_the_double_s_recording_is_torch_s() -> None:
    begin = signature(torch.cuda.graphs.CUDAGraph.capture_begin) if torch.version.cuda else None
    if begin is not None:
        assert {"pool", "capture_error_mode"} <= set(begin.parameters)
    assert {"pool", "capture_error_mode"} <= set(signature(torch.cuda.graphs.graph.__init__).parameters)


def test_a_closure_runs_at_once_and_its_event_follows_it(fake: FakeCuda) -> None:
    device = CudaDevice(overlap=True)
    result = device.launch(lambda: fake.note("kernel", fake.current) or 7)
    assert fake.calls == [("kernel", 1), ("record", 1)]
    assert result.in_order() == 7
    assert len(fake.calls) == 2, "later closures wait for nothing"
    assert result.result() == 7
    assert fake.calls[-1] == ("synchronize event",)


def test_too_little_memory_is_said_and_the_cache_is_emptied(fake: FakeCuda) -> None:
    def closure() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.\nmore lines")

    with pytest.raises(OutOfMemory, match=r"^CUDA out of memory\. Tried to allocate 2 GiB\.$"):
        CudaDevice(overlap=True).launch(closure)
    assert fake.calls == [("empty cache",)]


def test_other_errors_are_as_they_are(fake: FakeCuda) -> None:
    with pytest.raises(ZeroDivisionError):
        CudaDevice(overlap=True).launch(lambda: 1 // 0)


def test_memory(fake: FakeCuda) -> None:
    device = CudaDevice(overlap=True)
    assert device.free_memory_bytes() == 5000 + 1700 - 1000

    def run() -> None:
        fake.note("run")
        fake.peak = 1640

    assert device.peak_memory_bytes(run) == 640
    assert [call[0] for call in fake.calls] == [
        "synchronize device",
        "reset peak",
        "run",
        "synchronize device",
        "empty cache",
    ]


def test_graphs_are_recorded_on_another_stream_and_replayed_on_the_steps(fake: FakeCuda) -> None:
    device = CudaDevice(overlap=True)
    recorder = device.graph_recorder()
    assert recorder is not None
    found: list[Callable[[], None]] = []
    recorder.record(lambda: fake.note("warm up", fake.current), lambda: fake.note("run", fake.current), found.append)
    recorder.wait()
    warmed_up = [("record", 1), ("wait", 2), ("warm up", 2), ("synchronize", 2)]
    assert fake.calls == [*warmed_up, ("begin", 2, "thread_local"), ("run", 2), ("end",)]
    device.launch(found[0])
    assert fake.calls[-2:] == [("replay", 1), ("record", 1)]
    device.close()


@pytest.mark.parametrize("while_capturing", [False, True])
def test_what_cannot_be_recorded_is_left_alone(
    fake: FakeCuda, capsys: pytest.CaptureFixture[str], while_capturing: bool
) -> None:
    recorder = CudaGraphRecorder(torch.device("cuda"))
    found: list[Any] = []

    def run() -> None:
        if fake.is_capturing is while_capturing:
            raise RuntimeError("operation not permitted when stream is capturing")

    recorder.record(run, run, found.append)
    recorder.record(lambda: None, lambda: None, lambda replay: found.append("next"))
    recorder.wait()
    assert found == ["next"], "the thread goes on"
    assert not fake.is_capturing
    output = capsys.readouterr()
    assert "could not be recorded" in output.out + output.err


def test_eager_means_no_recorder(fake: FakeCuda) -> None:
    assert CudaDevice(overlap=True, graphs=False).graph_recorder() is None
