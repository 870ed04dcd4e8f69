"""The pool of KV blocks: reference counts and a free list in order of last use.

A free block may still hold a published prefix: it stays findable until ``take`` hands it out for new
contents, and ``on_evict`` is told just before that.
"""

from collections.abc import Callable, Iterable, Iterator

from engine_core.kv_cache.block import Block


class BlockPool:
    """``num_blocks`` blocks, whose ids begin at ``first_id``. All operations are O(1) a block."""

    def __init__(self, num_blocks: int, on_evict: Callable[[Block], None], *, first_id: int = 0) -> None:
        if num_blocks < 1:
            raise ValueError(f"num_blocks must be at least 1, not {num_blocks}")
        self.blocks = [Block(first_id + index) for index in range(num_blocks)]
        self.num_free = 0
        self._on_evict = on_evict
        # A ring with a sentinel: sentinel.next_free is the next to hand out, sentinel.previous_free the last.
        self._sentinel = Block(-1)
        self._sentinel.previous_free = self._sentinel.next_free = self._sentinel
        for block in self.blocks:
            self._insert_before(self._sentinel, block)

    @property
    def num_blocks(self) -> int:
        """Size of the pool."""
        return len(self.blocks)

    def take(self, num_blocks: int) -> list[Block]:
        """Hand out blocks for new contents, least valuable first. The caller has checked ``num_free``."""
        if num_blocks > self.num_free:
            raise ValueError(f"asked for {num_blocks} blocks, {self.num_free} are free")
        taken = []
        for _ in range(num_blocks):
            block = self._sentinel.next_free
            assert block is not None
            self._unlink(block)
            if block.block_hash is not None:
                self._on_evict(block)
                block.block_hash = None
            block.num_references = 1
            taken.append(block)
        return taken

    def share(self, blocks: Iterable[Block]) -> None:
        """One more reference to each; a free block leaves the free list and keeps its contents."""
        for block in blocks:
            if block.num_references == 0:
                self._unlink(block)
            block.num_references += 1

    def release(self, blocks: list[Block]) -> None:
        """One reference less to each. Of one sequence the last blocks are reused first: its beginning is the
        likelier prefix. Blocks that nobody can find again go before all others."""
        for block in reversed(blocks):
            if block.num_references < 1:
                raise ValueError(f"block {block.block_id} is released more often than taken")
            block.num_references -= 1
            if block.num_references == 0:
                first = self._sentinel.next_free
                assert first is not None
                self._insert_before(self._sentinel if block.block_hash is not None else first, block)

    def findable(self) -> Iterator[Block]:
        """The free blocks that still hold a published prefix, the last used first."""
        block = self._sentinel.previous_free
        while block is not None and block is not self._sentinel:
            if block.block_hash is not None:
                yield block
            block = block.previous_free

    def check_integrity(self) -> None:
        """Raise AssertionError unless every block is either free and listed once, or referenced."""
        listed: list[Block] = []
        block = self._sentinel.next_free
        while block is not None and block is not self._sentinel:
            assert block.next_free is not None
            assert block.next_free.previous_free is block, f"free list broken at block {block.block_id}"
            listed.append(block)
            assert len(listed) <= len(self.blocks), "free list has a cycle"
            block = block.next_free
        assert len(listed) == self.num_free, f"{len(listed)} blocks listed as free, {self.num_free} counted"
        assert all(block.num_references == 0 for block in listed), "a referenced block is listed as free"
        num_unreferenced = sum(block.num_references == 0 for block in self.blocks)
        assert num_unreferenced == self.num_free, f"{num_unreferenced - self.num_free} blocks are lost"

    def _insert_before(self, successor: Block, block: Block) -> None:
        predecessor = successor.previous_free
        assert predecessor is not None
        predecessor.next_free = successor.previous_free = block
        block.previous_free, block.next_free = predecessor, successor
        self.num_free += 1

    def _unlink(self, block: Block) -> None:
        assert block.previous_free is not None
        assert block.next_free is not None
        block.previous_free.next_free = block.next_free
        block.next_free.previous_free = block.previous_free
        block.previous_free = block.next_free = None
        self.num_free -= 1
