"""Gives KV blocks to sequences: match, allocate, fork, publish, swap, release.

Knows tables, hashes and counts, no scheduling and no tensors. An allocation that cannot succeed changes nothing.
What must be copied for it is listed in the order in which the device must do it, and taken along by the next step.
"""

from collections.abc import Sequence as ListOf
from dataclasses import dataclass

from engine_core.kv_cache.block import Block, BlockTable
from engine_core.kv_cache.block_pool import BlockPool
from engine_core.kv_cache.prefix_cache import PrefixCache, extend_hashes
from engine_core.kv_cache.tiers import KVTiers, NoTiers, Swapped


@dataclass(frozen=True, slots=True)
class Fork:
    """The blocks that hold a prompt's first ``num_tokens`` tokens, referenced until the fork is released."""

    table: BlockTable
    num_tokens: int


class KVCacheManager:
    """The blocks of one engine. ``root`` is the parent of every chain of hashes (design 4); ``tiers`` is where blocks
    go that the pool has no room for, and their ids begin behind its own."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        enable_prefix_caching: bool = True,
        root: bytes = b"",
        tiers: KVTiers | None = None,
    ) -> None:
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching
        self.root = root
        self.prefix_cache = PrefixCache()
        self.pool = BlockPool(num_blocks, self._evict)
        self.num_evicted = 0  # published blocks that were given new contents
        self.tiers: KVTiers = NoTiers() if tiers is None else tiers
        self._copies: list[tuple[int, int]] = []

    @property
    def num_used_blocks(self) -> int:
        """Blocks that some sequence references."""
        return self.pool.num_blocks - self.pool.num_free

    def num_blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold ``num_tokens`` tokens."""
        return -(-num_tokens // self.block_size)

    def extend_hashes(self, hashes: list[bytes], token_ids: ListOf[int], extra: bytes) -> None:
        """Bring a chain of block hashes up to the full blocks of ``token_ids``."""
        if self.enable_prefix_caching:
            extend_hashes(hashes, token_ids, self.block_size, self.root, extra)

    def match(self, hashes: ListOf[bytes], num_tokens: int) -> list[Block]:
        """Published blocks of the longest known prefix that leaves at least one of ``num_tokens`` to compute; some
        may be a tier's."""
        wanted = hashes[: (num_tokens - 1) // self.block_size]
        found = self.prefix_cache.lookup(wanted)
        while len(found) < len(wanted) and (block := self.tiers.find(wanted[len(found)])) is not None:
            found.append(block)
            found += self.prefix_cache.lookup(wanted[len(found) :])
        return found

    def read_ahead(self, hashes: ListOf[bytes], num_tokens: int) -> tuple[bytes, ...]:
        """Have the tiers fetch what ``match`` would find if it were not on disk; the hashes that are on their way."""
        wanted = hashes[: (num_tokens - 1) // self.block_size]
        return self.tiers.read(wanted, lambda block_hash: self.prefix_cache.get(block_hash) is not None)

    def has_room(self, table: BlockTable, num_tokens: int) -> bool:
        """Whether the table holds ``num_tokens`` already: ``allocate`` would change nothing."""
        return num_tokens <= len(table.blocks) * self.block_size

    def can_allocate(self, table: BlockTable, num_tokens: int, shared: ListOf[Block] = ()) -> bool:
        """Whether ``allocate`` with the same arguments will succeed."""
        num_new = self.num_blocks_for(num_tokens) - table.num_blocks
        for block in shared:
            if self._is_on_device(block):
                num_new -= block.num_references > 0  # one that is free leaves the free list too
        return num_new <= self.pool.num_free

    def allocate(self, table: BlockTable, num_tokens: int, shared: ListOf[Block] = ()) -> bool:
        """Append ``shared``, then new blocks until the table holds ``num_tokens``; False, and nothing, if it cannot.

        Of a shared block that is in a tier the table gets a copy, which the next step makes."""
        if not self.can_allocate(table, num_tokens, shared):
            return False
        self._append(table, num_tokens, shared, are_hits=True)
        return True

    def swap_out(self, table: BlockTable, num_tokens: int) -> Swapped | None:
        """Have a tier hold the computed KV of the first ``num_tokens`` tokens; None, and nothing, if it does not."""
        found = self.tiers.swap_out(table.blocks[: self.num_blocks_for(num_tokens)], num_tokens)
        if found is None:
            return None
        swapped, copies = found
        self._copies += [(source.block_id, destination.block_id) for source, destination in copies]
        return swapped

    def swap_in(self, table: BlockTable, swapped: Swapped, hashes: ListOf[bytes], num_tokens: int) -> bool:
        """Let an empty table begin with what was swapped out and hold ``num_tokens``; False, and nothing, if it
        cannot. Blocks that are still on the device are shared, and the tier lets go of all."""
        shared = self.prefix_cache.lookup(hashes[: swapped.num_tokens // self.block_size])
        shared += swapped.blocks[len(shared) :]
        if not self.can_allocate(table, num_tokens, shared):
            return False
        self._append(table, num_tokens, shared, are_hits=False)
        self.tiers.drop(swapped)
        return True

    def _append(self, table: BlockTable, num_tokens: int, shared: ListOf[Block], *, are_hits: bool) -> None:
        num_new = self.num_blocks_for(num_tokens) - table.num_blocks - len(shared)
        below = []
        if shared:
            self.pool.share([block for block in shared if self._is_on_device(block)])
            below = [block for block in shared if not self._is_on_device(block)]
        if below:  # before blocks are taken: what these evict must not take the place of what is restored
            self.tiers.restore(below, len(below) * self.block_size if are_hits else 0)
        taken = iter(self.pool.take(max(0, num_new + len(below))))
        for block in shared:
            if self._is_on_device(block):
                table.blocks.append(block)
            else:
                target = next(taken)
                self._copies.append((block.block_id, target.block_id))
                table.blocks.append(target)
        table.blocks.extend(taken)

    def _is_on_device(self, block: Block) -> bool:
        return block.block_id < self.pool.num_blocks

    def fork(self, table: BlockTable, num_tokens: int) -> Fork:
        """Reference the blocks of the first ``num_tokens`` tokens, the last one perhaps in part."""
        blocks = table.blocks[: self.num_blocks_for(num_tokens)]
        self.pool.share(blocks)
        return Fork(BlockTable(list(blocks)), num_tokens)

    def allocate_fork(self, table: BlockTable, fork: Fork, num_tokens: int) -> bool:
        """Let an empty table begin where ``fork`` ends and hold ``num_tokens``.

        Full blocks are shared; one that is filled in part is copied on write. False, and nothing, if there are too
        few blocks.
        """
        num_full = fork.num_tokens // self.block_size
        if not self.allocate(table, num_tokens, fork.table.blocks[:num_full]):
            return False
        if fork.num_tokens % self.block_size:
            self._copies.append((fork.table.blocks[num_full].block_id, table.blocks[num_full].block_id))
        return True

    def publish(self, table: BlockTable, hashes: ListOf[bytes], num_computed: int, num_published: int) -> int:
        """Make the blocks findable whose KV is computed: those that ``num_computed`` tokens fill, from index
        ``num_published`` on. Returns the index to go on from next time."""
        num_full = min(num_computed // self.block_size, len(hashes), table.num_blocks)
        for index in range(num_published, num_full):
            self.prefix_cache.insert(hashes[index], table.blocks[index])
        return max(num_full, num_published)

    def num_findable(self, table: BlockTable) -> int:
        """How many blocks at the table's beginning others can find: what was copied from a tier is published once
        the copy is made."""
        blocks = table.blocks
        return next((index for index, block in enumerate(blocks) if block.block_hash is None), len(blocks))

    def begin_step(self) -> tuple[tuple[int, int], ...]:
        """The (source, destination) ids of the copies that the step which begins must make first, in order."""
        copies, self._copies = tuple(self._copies), []
        self.tiers.begin_step()
        return copies

    def end_step(self) -> None:
        """The oldest step that was begun is done."""
        self.tiers.end_step()

    def spill(self) -> bool:
        """The engine ends: save what is published, the last used first, where its successor will find it. Whether
        there is something to copy for that, in a step of its own."""
        if self.tiers.outlives_engine:
            for block in self.pool.findable():
                self._save(block)
        return bool(self._copies)

    def release(self, table: BlockTable) -> None:
        """Give all references back; the table is empty afterwards."""
        self.pool.release(table.blocks)
        table.blocks = []

    def _evict(self, block: Block) -> None:
        """It gets new contents: a tier may keep the old ones."""
        self._save(block)
        self.prefix_cache.evict(block)
        self.num_evicted += 1

    def _save(self, block: Block) -> None:
        saved = self.tiers.save(block)
        if saved is not None:
            self._copies.append((block.block_id, saved.block_id))

    def check_integrity(self) -> None:
        """Raise AssertionError unless the pool is whole, the prefix cache agrees with it, and so do the tiers."""
        self.pool.check_integrity()
        self.prefix_cache.check_integrity()
        num_hashed = sum(block.block_hash is not None for block in self.pool.blocks)
        assert num_hashed == len(self.prefix_cache), "a block carries a hash that the prefix cache does not know"
        self.tiers.check_integrity()
