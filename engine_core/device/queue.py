"""A device as an in-order queue of closures: what is launched later sees what was launched earlier.

On CUDA a closure runs at once and its kernels queue on one stream; on CPU it runs on one compute thread, or at
once when steps do not overlap. Scheduler, runner and sampler cannot tell them apart.
"""

from collections.abc import Callable
from typing import Protocol, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Result(Protocol[T_co]):
    """A closure's value, once the device has come to it."""

    def result(self) -> T_co:
        """Wait without holding the GIL; raises what the closure raised."""


class Device(Protocol):
    """One device."""

    torch_device: torch.device
    overlaps_by_default: bool

    def launch(self, closure: Callable[[], T]) -> Result[T]:
        """Queue a closure."""

    def empty(self, shape: tuple[int, ...]) -> Tensor:
        """u8, uninitialized: a KV cache."""

    def empty_on_host(self, shape: tuple[int, ...]) -> Tensor:
        """u8, uninitialized, in the host's memory, where the device can copy to and from while it works on (pinned,
        where there is such a thing)."""

    def free_memory_bytes(self) -> int:
        """Memory that may still be taken."""

    def close(self) -> None:
        """Wait for what is queued and stop."""
