"""Host memory below the device pool: blocks of preempted sequences, and published ones that the device had to evict.

A pool and a prefix cache of its own, least recently used first; what it has is written to disk, if there is one, so
that it may forget it without losing it. Knows which block holds what, and none of its bytes.

One rule keeps device, host and disk apart: a host block is referenced while a copy to or from it is on its way, in
a step that is not committed or in an order to the disk. Only then may it get other contents.
"""

from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as ListOf

from engine_core.kv_cache.block import Block
from engine_core.kv_cache.block_pool import BlockPool
from engine_core.kv_cache.disk import Disk, NoDisk
from engine_core.kv_cache.prefix_cache import PrefixCache
from engine_core.kv_cache.tier_costs import TierCosts
from engine_core.kv_cache.tiers import Swapped, TierUse


class HostTier:
    """Implements ``KVTiers`` with ``num_blocks`` blocks, whose ids begin at ``first_id``."""

    def __init__(self, first_id: int, num_blocks: int, costs: TierCosts, disk: Disk | None = None) -> None:
        self.num_held = 0
        self.cache = PrefixCache()
        self.pool = BlockPool(num_blocks, self._forget, first_id=first_id)
        self._costs = costs
        self._first_id = first_id
        self._has_disk = disk is not None
        self._disk: Disk = NoDisk() if disk is None else disk
        self._copying: list[Block] = []  # asked for; goes with the next step
        self._steps: deque[list[Block]] = deque()  # launched, the oldest first
        self._reading: dict[bytes, Block] = {}
        self._writing: dict[bytes, Block] = {}
        self._to_write: dict[Block, bytes] = {}  # in order of arrival
        self._from_disk: set[Block] = set()  # read and not used yet
        self._num_private = 0  # held blocks that nobody can find: the last one of a sequence
        self._blocks_out = self._blocks_in = 0
        self._evictions = 0  # published blocks that were given new contents
        self._host_hit_tokens = self._disk_hit_tokens = 0

    # ---- what is there

    def find(self, block_hash: bytes) -> Block | None:
        """The host block with these contents."""
        return self.cache.get(block_hash)

    def is_reading(self, block_hash: bytes) -> bool:
        """Whether the disk is at it."""
        return block_hash in self._reading

    def use(self) -> TierUse:
        """For statistics."""
        return TierUse(
            num_host_blocks=self.pool.num_blocks,
            num_used_host_blocks=len(self.cache) + self._num_private + len(self._reading),
            blocks_out=self._blocks_out,
            blocks_in=self._blocks_in,
            host_hit_tokens=self._host_hit_tokens,
            disk_hit_tokens=self._disk_hit_tokens,
            disk_bytes=self._disk.num_bytes,
            corrupt_files=self._disk.num_corrupt,
            disk_errors=self._disk.num_errors,
            host_evictions=self._evictions,
            disk_evictions=self._disk.num_evicted,
        )

    @property
    def outlives_engine(self) -> bool:
        """If there is a disk."""
        return self._has_disk

    # ---- device to host

    def save(self, block: Block) -> Block | None:
        """Where to copy a published block that the device evicts; None if it is here already or nothing is free."""
        assert block.block_hash is not None
        if self.cache.get(block.block_hash) is not None or not self.pool.num_free:
            return None
        (saved,) = self.pool.take(1)
        self.cache.insert(block.block_hash, saved)
        self._copying.append(saved)  # the reference is the copy's
        self._blocks_out += 1
        return saved

    def swap_out(self, blocks: ListOf[Block], num_tokens: int) -> tuple[Swapped, list[tuple[Block, Block]]] | None:
        """Hold the contents of these device blocks: those that are here already under their hash are not copied."""
        if not self._costs.prefers_swap(num_tokens, len(blocks)):
            return None
        known = [None if block.block_hash is None else self.cache.get(block.block_hash) for block in blocks]
        here = [block for block in known if block is not None]
        num_claimed = sum(block.num_references == 0 for block in here)
        if len(blocks) - len(here) + num_claimed > self.pool.num_free:
            return None
        self.pool.share(here)
        taken = self.pool.take(len(blocks) - len(here))
        self.pool.share(taken)
        self._copying += taken
        self._blocks_out += len(taken)
        self.num_held += len(blocks)
        held, copies, new = [], [], iter(taken)
        for block, found in zip(blocks, known, strict=True):
            if found is None:
                found = next(new)
                copies.append((block, found))
                if block.block_hash is not None:
                    self.cache.insert(block.block_hash, found)
            self._num_private += found.block_hash is None
            held.append(found)
        return Swapped(tuple(held), num_tokens), copies

    # ---- host to device

    def restore(self, blocks: ListOf[Block], num_tokens: int) -> None:
        """The next step copies these; ``num_tokens`` of them, in equal shares, are a prompt's that need no
        computing."""
        self.pool.share(blocks)
        self._copying += blocks
        self._blocks_in += len(blocks)
        num_from_disk = len(self._from_disk.intersection(blocks))
        self._from_disk.difference_update(blocks)
        disk_tokens = num_tokens * num_from_disk // len(blocks)
        self._disk_hit_tokens += disk_tokens
        self._host_hit_tokens += num_tokens - disk_tokens

    def drop(self, swapped: Swapped) -> None:
        """The sequence has its blocks back, or has ended."""
        self.pool.release(list(swapped.blocks))
        self.num_held -= len(swapped.blocks)
        self._num_private -= sum(block.block_hash is None for block in swapped.blocks)

    def begin_step(self) -> None:
        """The copies asked for go with this step."""
        self._steps.append(self._copying)
        self._copying = []

    def end_step(self) -> None:
        """They are done: what came in may be written to disk."""
        blocks = self._steps.popleft()
        if self._has_disk:
            for block in blocks:
                if block.block_hash is not None:
                    self._to_write.setdefault(block, block.block_hash)
            self._write_some(self.pool.num_blocks // 2)
        self.pool.release(blocks)

    # ---- disk

    def read(self, hashes: ListOf[bytes], is_above: Callable[[bytes], bool]) -> tuple[bytes, ...]:
        """Order what of a chain is on disk only, as far as the chain is known and host blocks are free."""
        if not self._has_disk:
            return ()
        here, coming = [], []
        for block_hash in hashes:
            if is_above(block_hash):
                continue
            block = self.cache.get(block_hash)
            if block is not None:
                self.pool.share([block])  # or a block that is read would take its place
                here.append(block)
            elif block_hash in self._reading or (block_hash in self._disk and self.pool.num_free):
                self._order(block_hash)
                coming.append(block_hash)
            else:
                break
        self.pool.release(here)
        return tuple(coming)

    def patience(self, num_tokens: int, end: int) -> float:
        """As long as computing would take."""
        return self._costs.patience(num_tokens, end)

    def _order(self, block_hash: bytes) -> None:
        if block_hash not in self._reading:
            (block,) = self.pool.take(1)
            self._reading[block_hash] = block
            self._disk.read(block_hash, block.block_id - self._first_id)

    def poll(self) -> None:
        """Take in what the disk has done; a block becomes findable only now."""
        for done in self._disk.take_done():
            if done.is_read:
                block = self._reading.pop(done.block_hash)
                if done.is_ok:
                    self.cache.insert(done.block_hash, block)
                if block.block_hash is not None:
                    self._from_disk.add(block)
            else:
                block = self._writing.pop(done.block_hash)
            self.pool.release([block])
        if self._to_write:
            self._write_some(self.pool.num_blocks // 2)

    def _write_some(self, most: int) -> None:
        """Not all of the host blocks may wait for the disk: the rest must stay free to take."""
        while self._to_write and len(self._writing) < max(1, most):
            block, block_hash = next(iter(self._to_write.items()))
            del self._to_write[block]
            if block_hash not in self._disk and block_hash not in self._writing:
                self.pool.share([block])
                self._writing[block_hash] = block
                self._disk.write(block_hash, block.block_id - self._first_id)

    def wait(self, seconds: float) -> None:
        """For the disk."""
        self._disk.wait(seconds)

    def close(self) -> None:
        """Write what is here; the engine has ended."""
        self._write_some(self.pool.num_blocks)
        self._disk.close()

    # ---- accounts

    def check_integrity(self) -> None:
        """Raise AssertionError unless all references are those of sequences, copies and disk orders."""
        self.pool.check_integrity()
        self.cache.check_integrity()
        num_hashed = sum(block.block_hash is not None for block in self.pool.blocks)
        assert num_hashed == len(self.cache), "a host block carries a hash that its cache does not know"
        num_copying = len(self._copying) + sum(map(len, self._steps))
        expected = self.num_held + num_copying + len(self._reading) + len(self._writing)
        found = sum(block.num_references for block in self.pool.blocks)
        assert found == expected, f"{found} references to host blocks, {expected} users"

    def _forget(self, block: Block) -> None:
        """It gets other contents; what was not written to disk yet is lost."""
        self._from_disk.discard(block)
        self._to_write.pop(block, None)
        self.cache.evict(block)
        self._evictions += 1
