"""Blocks of KV memory and the ordered list of them that one sequence reads.

Owns identity and order; who may use a block is the pool's business. No torch: a block is a number here.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Block:
    """One KV block. ``block_hash`` is set while the prefix cache can find it."""

    block_id: int
    num_references: int = 0
    block_hash: bytes | None = None
    previous_free: Block | None = None
    next_free: Block | None = None


@dataclass(slots=True, eq=False)
class BlockTable:
    """A sequence's blocks in order; append-only until it is released as a whole."""

    blocks: list[Block] = field(default_factory=list)

    @property
    def num_blocks(self) -> int:
        """Blocks held."""
        return len(self.blocks)

    @property
    def block_ids(self) -> tuple[int, ...]:
        """The ids, in order."""
        return tuple(block.block_id for block in self.blocks)
