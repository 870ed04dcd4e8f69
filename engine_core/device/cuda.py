"""A CUDA device: one stream on which all steps' kernels queue in order, while the host goes on.

The only module beside the kernels that calls torch.cuda. Whoever waits for a step waits for its event, not for the
stream, on which the next step lies already.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor

from engine_core.device.cuda_graphs import CudaGraphRecorder
from engine_core.device.queue import OutOfMemory
from engine_core.device.staging import PinnedRing, PinnedStage

__all__ = ["CudaDevice"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CudaResult(Generic[T]):
    """A value that is there once ``event`` has happened."""

    value: T
    event: torch.cuda.Event

    def result(self) -> T:
        """Wait; raises what went wrong on the device."""
        self.event.synchronize()
        return self.value

    def in_order(self) -> T:
        """Kernels queued from now on find it computed."""
        return self.value


class CudaDevice:
    """torch's current CUDA device, which must be there, for the thread that makes this: its kernels, those that load
    weights among them, queue on one stream from now on. Closures run at once, whether or not steps ``overlap``: that is
    the loop's to decide. ``graphs``: whether decode steps are recorded."""

    overlaps_by_default = True
    has_own_memory = True

    def __init__(self, *, overlap: bool, graphs: bool = True) -> None:
        self.torch_device = torch.device("cuda", torch.cuda.current_device())
        self.name = torch.cuda.get_device_name(self.torch_device)
        self._stream = torch.cuda.Stream(self.torch_device)
        torch.cuda.set_stream(self._stream)
        self._staging = PinnedRing(self.torch_device, _empty_pinned, torch.cuda.Event)
        self._recorder = CudaGraphRecorder(self.torch_device) if graphs else None

    def launch(self, closure: Callable[[], T]) -> CudaResult[T]:
        """Run a closure, whose kernels queue. Raises OutOfMemory."""
        try:
            with torch.cuda.stream(self._stream):
                value = closure()
        except torch.OutOfMemoryError as error:
            torch.cuda.empty_cache()  # what is left in pieces may be enough in one
            raise OutOfMemory(str(error).partition("\n")[0]) from error
        event = torch.cuda.Event()
        event.record(self._stream)
        return CudaResult(value, event)

    def stage(self) -> PinnedStage:
        """A pinned buffer."""
        return self._staging.stage()

    def to_host(self, tensor: Tensor) -> Tensor:
        """Into pinned memory, which torch keeps until the copy is done."""
        return tensor.to("cpu", non_blocking=True)

    def empty(self, shape: tuple[int, ...]) -> Tensor:
        """u8, uninitialized."""
        return torch.empty(shape, dtype=torch.uint8, device=self.torch_device)

    def empty_on_host(self, shape: tuple[int, ...]) -> Tensor:
        """u8, uninitialized, pinned."""
        return torch.empty(shape, dtype=torch.uint8, pin_memory=True)

    def free_memory_bytes(self) -> int:
        """What the driver has left, and what torch's allocator holds without need."""
        free, _ = torch.cuda.mem_get_info(self.torch_device)
        reserved = torch.cuda.memory_reserved(self.torch_device) - torch.cuda.memory_allocated(self.torch_device)
        return free + reserved

    def peak_memory_bytes(self, run: Callable[[], object]) -> int:
        """By the allocator's count."""
        torch.cuda.synchronize(self.torch_device)
        torch.cuda.reset_peak_memory_stats(self.torch_device)
        before = torch.cuda.memory_allocated(self.torch_device)
        run()
        torch.cuda.synchronize(self.torch_device)
        peak = torch.cuda.max_memory_allocated(self.torch_device) - before
        torch.cuda.empty_cache()
        return peak

    def graph_recorder(self) -> CudaGraphRecorder | None:
        """Of CUDA graphs."""
        return self._recorder

    def close(self) -> None:
        """Wait for what is queued."""
        if self._recorder is not None:
            self._recorder.close()
        self._stream.synchronize()


def _empty_pinned(num_bytes: int) -> Tensor:
    return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)
