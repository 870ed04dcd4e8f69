"""Reads and writes block files on a thread of its own, so that no disk holds the busy loop up. Reads go first.

A disk that is full, or does not work, costs one warning; from then on what it should hold is computed.
"""

import threading
import time
from collections import deque
from collections.abc import Callable

import structlog

from engine_core.kv_cache.block_files import BlockFiles
from engine_core.kv_cache.disk import DiskDone

PAUSE_SECONDS = 30.0  # without a try after a write has failed
CLOSE_SECONDS = 10.0

log = structlog.get_logger("octavo.engine.kv_disk")


class DiskThread:
    """Implements ``Disk``. ``host_block`` gives the bytes of a host block, by its index."""

    def __init__(
        self,
        files: BlockFiles,
        host_block: Callable[[int], memoryview],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.num_errors = 0
        self._files, self._host_block, self._clock = files, host_block, clock
        self._reads: deque[tuple[bytes, int]] = deque()
        self._writes: deque[tuple[bytes, int]] = deque()
        self._done: deque[DiskDone] = deque()
        self._has_orders, self._has_done = threading.Semaphore(0), threading.Event()
        self._has_warned = False
        self._next_try = 0.0
        self._thread = threading.Thread(target=self._run, name="kv-disk", daemon=True)
        self._thread.start()

    @property
    def num_bytes(self) -> int:
        """Kept now."""
        return self._files.num_bytes

    @property
    def num_corrupt(self) -> int:
        """Files so far that were not what they should have been."""
        return self._files.num_corrupt

    @property
    def num_evicted(self) -> int:
        """Files so far that made room for others."""
        return self._files.num_evicted

    def __contains__(self, block_hash: object) -> bool:
        return block_hash in self._files

    def read(self, block_hash: bytes, host_index: int) -> None:
        """Order: fill the host block."""
        self._reads.append((block_hash, host_index))
        self._has_orders.release()

    def write(self, block_hash: bytes, host_index: int) -> None:
        """Order: keep the host block's bytes."""
        self._writes.append((block_hash, host_index))
        self._has_orders.release()

    def take_done(self) -> list[DiskDone]:
        """What was done since the last call."""
        self._has_done.clear()
        return [self._done.popleft() for _ in range(len(self._done))]

    def wait(self, seconds: float) -> None:
        """Until something is done, or the time is over."""
        self._has_done.wait(seconds)

    def close(self) -> None:
        """Carry out what is ordered; a disk that takes too long for it is left alone."""
        self._has_orders.release()  # without an order: the end
        self._thread.join(CLOSE_SECONDS)

    # ---- the thread

    def _run(self) -> None:
        while True:
            self._has_orders.acquire()
            if self._reads:
                block_hash, host_index = self._reads.popleft()
                done = DiskDone(block_hash, True, self._read(block_hash, host_index))
            elif self._writes:
                block_hash, host_index = self._writes.popleft()
                done = DiskDone(block_hash, False, self._write(block_hash, host_index))
            else:
                return
            self._done.append(done)
            self._has_done.set()

    def _read(self, block_hash: bytes, host_index: int) -> bool:
        try:
            return self._files.read_into(block_hash, self._host_block(host_index))
        except OSError as error:
            self._complain(error)
            return False

    def _write(self, block_hash: bytes, host_index: int) -> bool:
        if self._clock() < self._next_try:
            return False
        try:
            self._files.write(block_hash, self._host_block(host_index))
        except OSError as error:
            self._next_try = self._clock() + PAUSE_SECONDS
            self._complain(error)
            return False
        return True

    def _complain(self, error: OSError) -> None:
        self.num_errors += 1
        if not self._has_warned:
            self._has_warned = True
            log.warning("the disk tier of the KV cache does not work: prompts are computed instead", reason=str(error))
