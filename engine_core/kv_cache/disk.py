"""The disk below the host tier, as the busy loop sees it: orders go in, and what is done comes out later."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class DiskDone:
    """An order is carried out, or has failed: a block that could not be read has undefined contents."""

    block_hash: bytes
    is_read: bool
    is_ok: bool


class Disk(Protocol):
    """Blocks by their hash. Orders name the host block (0 is the first) whose bytes are read or written."""

    def __contains__(self, block_hash: object) -> bool:
        """Whether it is likely to be there: what is in the file is known once it is read."""

    def read(self, block_hash: bytes, host_index: int) -> None:
        """Order: fill the host block. Nobody else may touch it until this is done."""

    def write(self, block_hash: bytes, host_index: int) -> None:
        """Order: keep the host block's bytes. Nobody may change them until this is done."""

    def take_done(self) -> list[DiskDone]:
        """What was done since the last call; each order once."""

    def wait(self, seconds: float) -> None:
        """Until something is done, or the time is over."""

    @property
    def num_bytes(self) -> int:
        """Kept now."""

    @property
    def num_corrupt(self) -> int:
        """Files so far that were not what they should have been."""

    @property
    def num_evicted(self) -> int:
        """Files so far that made room for others."""

    @property
    def num_errors(self) -> int:
        """Orders so far that the system refused."""

    def close(self) -> None:
        """Carry out what is ordered and end."""


class NoDisk:
    """Implements ``Disk``: holds nothing, and is never given an order to read."""

    num_bytes = num_corrupt = num_evicted = num_errors = 0

    def __contains__(self, block_hash: object) -> bool:
        return False

    def read(self, block_hash: bytes, host_index: int) -> None:
        """Not called: nothing is contained."""
        raise NotImplementedError("there is no disk tier")

    def write(self, block_hash: bytes, host_index: int) -> None:
        """Not called: see HostTier."""
        raise NotImplementedError("there is no disk tier")

    def take_done(self) -> list[DiskDone]:
        """Nothing."""
        return []

    def wait(self, seconds: float) -> None:
        """Nothing will come."""

    def close(self) -> None:
        """Nothing is ordered."""
