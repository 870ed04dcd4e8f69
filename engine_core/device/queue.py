"""A device as an in-order queue of closures: what is launched later sees what was launched earlier.

On CUDA a closure runs at once and its kernels queue on one stream; on CPU it runs on one compute thread, or at
once when steps do not overlap. Scheduler, runner and sampler cannot tell them apart.
"""

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

Array = np.ndarray[Any, np.dtype[Any]]


class OutOfMemory(Exception):
    """The device has too little memory left for what a closure asked of it. What it had queued before may still run."""


class Result(Protocol[T_co]):
    """A closure's value, once the device has come to it."""

    def result(self) -> T_co:
        """Wait without holding the GIL; raises what the closure raised."""

    def in_order(self) -> T_co:
        """The same for closures launched later on the same device, when all before them is done or queued: no wait."""


class Stage(Protocol):
    """A step's small arrays on their way to the device."""

    def put(self, array: Array) -> Tensor:
        """On the device, with the array's values once ``send`` has been called there. The array may be changed as soon
        as the step is over, not before."""

    def send(self) -> None:
        """In a closure: what was put is on the device for all that follows."""


class GraphRecorder(Protocol):
    """Records what closures launch, to be launched again as one call."""

    def record(
        self, warm_up: Callable[[], object], run: Callable[[], None], done: Callable[[Callable[[], None]], None]
    ) -> None:
        """Soon, ``warm_up`` is called and computes beside the device's queue, at the same time as any step: it must
        write nothing that steps read. Then ``run``, which is recorded and computes nothing yet; then ``done(replay)``,
        on any thread. Not called if that failed, which is logged. What ``run`` allocates is its own only until another
        recording is replayed."""

    def wait(self) -> None:
        """Until all is recorded that was asked for."""


class Device(Protocol):
    """One device."""

    torch_device: torch.device
    name: str  # as its maker calls it
    overlaps_by_default: bool
    has_own_memory: bool  # beside the system's: what it takes there is nobody else's

    def launch(self, closure: Callable[[], T]) -> Result[T]:
        """Queue a closure. Raises OutOfMemory, where that is known at once."""

    def stage(self) -> Stage:
        """For one step's arrays, or for some more of the same step."""

    def to_host(self, tensor: Tensor) -> Tensor:
        """In a closure: the tensor for whoever waits for the closure's result."""

    def empty(self, shape: tuple[int, ...]) -> Tensor:
        """u8, uninitialized: a KV cache."""

    def empty_on_host(self, shape: tuple[int, ...]) -> Tensor:
        """u8, uninitialized, in the host's memory, where the device can copy to and from while it works on (pinned,
        where there is such a thing)."""

    def free_memory_bytes(self) -> int:
        """Memory that may still be taken."""

    def peak_memory_bytes(self, run: Callable[[], object]) -> int:
        """Memory that ``run`` takes on top of what is taken, at most at any time. 0 where a system's memory is shared
        and nobody counts it."""

    def graph_recorder(self) -> GraphRecorder | None:
        """None where nothing is gained by one, or the backend records by itself."""

    def close(self) -> None:
        """Wait for what is queued and stop."""
