"""A disk of which a test says what it has done."""

from engine_core.kv_cache.disk import DiskDone


class OrderBook:
    """A disk that notes its orders; ``finish`` says how they went."""

    def __init__(self, *known: bytes) -> None:
        self.num_bytes = self.num_corrupt = self.num_evicted = self.num_errors = 0
        self.known, self.reads, self.writes = set(known), list[bytes](), list[bytes]()
        self.done: list[DiskDone] = []

    def __contains__(self, block_hash: object) -> bool:
        return block_hash in self.known

    def read(self, block_hash: bytes, host_index: int) -> None:
        self.reads.append(block_hash)

    def write(self, block_hash: bytes, host_index: int) -> None:
        self.writes.append(block_hash)

    def finish(self, *, is_ok: bool = True) -> None:
        self.known |= set(self.writes) if is_ok else set()
        self.done += [DiskDone(block_hash, is_read=True, is_ok=is_ok) for block_hash in self.reads]
        self.done += [DiskDone(block_hash, is_read=False, is_ok=is_ok) for block_hash in self.writes]
        self.reads, self.writes = [], []

    def take_done(self) -> list[DiskDone]:
        done, self.done = self.done, []
        return done

    def wait(self, seconds: float) -> None: ...

    def close(self) -> None: ...
