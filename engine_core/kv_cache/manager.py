"""Gives KV blocks to sequences: match, allocate, fork, publish, release.

Knows tables, hashes and counts, no scheduling and no tensors. An allocation that cannot succeed changes nothing.
"""

from collections.abc import Sequence as ListOf
from dataclasses import dataclass

from engine_core.kv_cache.block import Block, BlockTable
from engine_core.kv_cache.block_pool import BlockPool
from engine_core.kv_cache.prefix_cache import PrefixCache, extend_hashes


@dataclass(frozen=True, slots=True)
class Fork:
    """The blocks that hold a prompt's first ``num_tokens`` tokens, referenced until the fork is released."""

    table: BlockTable
    num_tokens: int


class KVCacheManager:
    """The blocks of one engine. ``root`` is the parent of every chain of hashes (design 4)."""

    def __init__(
        self, num_blocks: int, block_size: int, *, enable_prefix_caching: bool = True, root: bytes = b""
    ) -> None:
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching
        self.root = root
        self.prefix_cache = PrefixCache()
        self.pool = BlockPool(num_blocks, self.prefix_cache.evict)

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
        """Published blocks of the longest known prefix that leaves at least one of ``num_tokens`` to compute."""
        return self.prefix_cache.lookup(hashes[: (num_tokens - 1) // self.block_size])

    def has_room(self, table: BlockTable, num_tokens: int) -> bool:
        """Whether the table holds ``num_tokens`` already: ``allocate`` would change nothing."""
        return num_tokens <= len(table.blocks) * self.block_size

    def can_allocate(self, table: BlockTable, num_tokens: int, shared: ListOf[Block] = ()) -> bool:
        """Whether ``allocate`` with the same arguments will succeed."""
        num_new = self.num_blocks_for(num_tokens) - table.num_blocks - len(shared)
        num_claimed = sum(block.num_references == 0 for block in shared)  # they leave the free list too
        return num_new + num_claimed <= self.pool.num_free

    def allocate(self, table: BlockTable, num_tokens: int, shared: ListOf[Block] = ()) -> bool:
        """Append ``shared``, then new blocks until the table holds ``num_tokens``; False, and nothing, if it cannot."""
        if not self.can_allocate(table, num_tokens, shared):
            return False
        self.pool.share(shared)
        table.blocks.extend(shared)
        table.blocks.extend(self.pool.take(max(0, self.num_blocks_for(num_tokens) - table.num_blocks)))
        return True

    def fork(self, table: BlockTable, num_tokens: int) -> Fork:
        """Reference the blocks of the first ``num_tokens`` tokens, the last one perhaps in part."""
        blocks = table.blocks[: self.num_blocks_for(num_tokens)]
        self.pool.share(blocks)
        return Fork(BlockTable(list(blocks)), num_tokens)

    def allocate_fork(self, table: BlockTable, fork: Fork, num_tokens: int) -> tuple[tuple[int, int], ...] | None:
        """Let an empty table begin where ``fork`` ends and hold ``num_tokens``.

        Full blocks are shared; one that is filled in part is copied on write: the (source, destination) ids of
        the copy are returned, or () if there is none. None, and nothing, if there are too few blocks.
        """
        num_full = fork.num_tokens // self.block_size
        if not self.allocate(table, num_tokens, fork.table.blocks[:num_full]):
            return None
        if fork.num_tokens % self.block_size == 0:
            return ()
        return ((fork.table.blocks[num_full].block_id, table.blocks[num_full].block_id),)

    def publish(self, table: BlockTable, hashes: ListOf[bytes], num_computed: int, num_published: int) -> int:
        """Make the blocks findable whose KV is computed: those that ``num_computed`` tokens fill, from index
        ``num_published`` on. Returns the index to go on from next time."""
        num_full = min(num_computed // self.block_size, len(hashes), table.num_blocks)
        for index in range(num_published, num_full):
            self.prefix_cache.insert(hashes[index], table.blocks[index])
        return max(num_full, num_published)

    def release(self, table: BlockTable) -> None:
        """Give all references back; the table is empty afterwards."""
        self.pool.release(table.blocks)
        table.blocks = []

    def check_integrity(self) -> None:
        """Raise AssertionError unless the pool is whole and the prefix cache agrees with it."""
        self.pool.check_integrity()
        self.prefix_cache.check_integrity()
        num_hashed = sum(block.block_hash is not None for block in self.pool.blocks)
        assert num_hashed == len(self.prefix_cache), "a block carries a hash that the prefix cache does not know"
