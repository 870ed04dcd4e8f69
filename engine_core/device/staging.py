"""How a step's small arrays get to a device: not at all where it reads the host's memory, else through pinned buffers.

A buffer's arrays travel as one copy. Buffers are taken in turn, and one is written again only after its last copy is
done, so the host never changes what the device still reads.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from engine_core.device.queue import Array

ALIGNMENT = 256
SMALLEST_CHUNK = 1 << 18
NUM_BUFFERS = 4  # two steps on their way, each with its inputs and with masks that come later


class DirectStage:
    """The device reads the arrays where they lie."""

    def put(self, array: Array) -> Tensor:
        """Shares the array's memory."""
        return torch.from_numpy(array)

    def send(self) -> None:
        """Nothing has to go anywhere."""


class Event(Protocol):
    """Of CUDA."""

    def record(self) -> None:
        """Happens when the device has done what is queued."""

    def synchronize(self) -> None:
        """Wait; not at all if it was never recorded."""


@dataclass(slots=True)
class Chunk:
    """Two memories of the same size, u8."""

    host: Tensor
    device: Tensor
    num_used: int = 0


@dataclass(slots=True)
class Buffer:
    """``event``: after the last copy out of the host's memory."""

    event: Event
    chunks: list[Chunk] = field(default_factory=list)


class PinnedRing:
    """``empty_pinned``: u8 of so many bytes in the host's memory, which copies may read at any time."""

    def __init__(
        self,
        device: torch.device,
        empty_pinned: Callable[[int], Tensor],
        make_event: Callable[[], Event],
    ) -> None:
        self._device, self._empty_pinned = device, empty_pinned
        self._buffers = [Buffer(make_event()) for _ in range(NUM_BUFFERS)]
        self._num_taken = 0

    def stage(self) -> "PinnedStage":
        """The next buffer, empty. Waits for its last copy, which was queued some steps ago."""
        buffer = self._buffers[self._num_taken % NUM_BUFFERS]
        self._num_taken += 1
        buffer.event.synchronize()
        for chunk in buffer.chunks:
            chunk.num_used = 0
        return PinnedStage(self, buffer)

    def room(self, buffer: Buffer, num_bytes: int) -> Chunk:
        """A chunk with so much room; buffers keep what they once needed."""
        for chunk in buffer.chunks:
            if chunk.num_used + num_bytes <= len(chunk.host):
                return chunk
        size = max(num_bytes, SMALLEST_CHUNK, *(2 * len(chunk.host) for chunk in buffer.chunks))
        chunk = Chunk(self._empty_pinned(size), torch.empty(size, dtype=torch.uint8, device=self._device))
        buffer.chunks.append(chunk)
        return chunk


class PinnedStage:
    """One use of one buffer."""

    def __init__(self, ring: PinnedRing, buffer: Buffer) -> None:
        self._ring, self._buffer = ring, buffer

    def put(self, array: Array) -> Tensor:
        """Copies the array at once."""
        source = torch.from_numpy(array)
        num_bytes = source.numel() * source.itemsize
        chunk = self._ring.room(self._buffer, num_bytes)
        start, end = chunk.num_used, chunk.num_used + num_bytes
        chunk.num_used = -(-end // ALIGNMENT) * ALIGNMENT
        chunk.host[start:end].view(source.dtype).view(source.shape).copy_(source)
        return chunk.device[start:end].view(source.dtype).view(source.shape)

    def send(self) -> None:
        """One copy a chunk that was used."""
        for chunk in self._buffer.chunks:
            if chunk.num_used:
                chunk.device[: chunk.num_used].copy_(chunk.host[: chunk.num_used], non_blocking=True)
        self._buffer.event.record()
