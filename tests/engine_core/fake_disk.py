"""A disk without files: it keeps what the fake device has in a host block, and does its orders when it is told to.

What is not read yet is garbage in the meantime, and what fails stays garbage: nobody may look at it.
"""

from collections import deque
from collections.abc import Callable

from engine_core.kv_cache.disk import DiskDone

GARBAGE = (-1, 0, b"garbage")


class FakeDisk:
    """Implements ``Disk``. ``memory(index)`` is a host block's contents, a list. ``is_broken``: everything fails."""

    def __init__(self, memory: Callable[[int], list[object]]) -> None:
        self.num_bytes = self.num_corrupt = self.num_evicted = self.num_errors = 0
        self.contents: dict[bytes, list[object]] = {}
        self.orders: deque[tuple[bytes, int, bool]] = deque()
        self.done: list[DiskDone] = []
        self.is_broken = self.is_closed = False
        self._memory = memory

    def __contains__(self, block_hash: object) -> bool:
        return block_hash in self.contents

    def read(self, block_hash: bytes, host_index: int) -> None:
        assert block_hash in self.contents
        memory = self._memory(host_index)
        memory[:] = [GARBAGE] * len(memory)
        self.orders.append((block_hash, host_index, True))

    def write(self, block_hash: bytes, host_index: int) -> None:
        assert block_hash not in self.contents
        self.orders.append((block_hash, host_index, False))

    def work(self) -> None:
        """Carry out one order."""
        block_hash, host_index, is_read = self.orders.popleft()
        memory = self._memory(host_index)
        is_ok = not self.is_broken
        if is_read and is_ok:
            memory[:] = self.contents[block_hash]
        elif is_read:
            del self.contents[block_hash]
        elif is_ok:
            assert None not in memory, "a block is written to disk before it is computed and copied"
            assert GARBAGE not in memory
            self.contents[block_hash] = list(memory)
        self.done.append(DiskDone(block_hash, is_read, is_ok))

    def take_done(self) -> list[DiskDone]:
        done, self.done = self.done, []
        return done

    def wait(self, seconds: float) -> None:
        """Nothing else can be done: a slow disk does one order."""
        assert self.orders, "nothing is on its way"
        self.work()

    def close(self) -> None:
        while self.orders:
            self.work()
        self.is_closed = True
