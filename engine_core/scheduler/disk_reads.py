"""Sequences that have left the queue until blocks of their prompt are read from disk: others go on meanwhile.

Each waits about as long as computing those blocks would take, and once: if the disk is slower than that, it is
computed after all.
"""

from collections.abc import Callable

from engine_core.kv_cache.manager import KVCacheManager
from engine_core.sequence import Sequence

WAIT_SECONDS = 0.001  # at a time, when nothing can run: messages are looked at in between


class DiskReads:
    """Who waits for which hashes, and until when. ``clock``: monotonic nanoseconds."""

    def __init__(self, kv: KVCacheManager, clock: Callable[[], int]) -> None:
        self._kv, self._clock = kv, clock
        self._waiting: dict[Sequence, tuple[tuple[bytes, ...], int]] = {}

    @property
    def num_waiting(self) -> int:
        """Sequences."""
        return len(self._waiting)

    def begin(self, seq: Sequence) -> bool:
        """Whether ``seq``, which would be admitted now, waits for the disk first. Asked once an admission, and not
        where it would not use what is read."""
        if seq.was_sought_on_disk or seq.swapped is not None or seq.has_prompt_logprobs_to_compute:
            return False
        seq.was_sought_on_disk = True
        num_tokens = len(seq.token_ids)
        self._kv.extend_hashes(seq.block_hashes, seq.token_ids, seq.request.extra_keys)
        hashes = self._kv.read_ahead(seq.block_hashes, num_tokens)
        if not hashes:
            return False
        seconds = self._kv.tiers.patience(len(hashes) * self._kv.block_size, num_tokens)
        self._waiting[seq] = (hashes, self._clock() + int(seconds * 1e9))
        return True

    def take_ready(self) -> list[Sequence]:
        """Those whose blocks are read, or that have waited long enough."""
        tiers = self._kv.tiers
        tiers.poll()
        if not self._waiting:
            return []
        now = self._clock()
        ready = [
            seq
            for seq, (hashes, until) in self._waiting.items()
            if now >= until or not any(map(tiers.is_reading, hashes))
        ]
        for seq in ready:
            del self._waiting[seq]
        return ready

    def drop(self, seq: Sequence) -> bool:
        """It has ended; False if it did not wait here. What is read for it is kept for others."""
        return self._waiting.pop(seq, None) is not None

    def wait(self) -> None:
        """Nothing else can be done: sleep until the disk has done something, but not for long."""
        if self._waiting:
            self._kv.tiers.wait(WAIT_SECONDS)
