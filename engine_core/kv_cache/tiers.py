"""Where KV goes that the device pool has no room for: what the block manager asks of the tiers below it.

Knows blocks and hashes, no bytes. A tier's block is a ``Block`` whose id lies behind those of the device pool, so
that a copy between tiers is a pair of ids like any other.
"""

from collections.abc import Callable
from collections.abc import Sequence as ListOf
from dataclasses import dataclass
from typing import Protocol

from engine_core.kv_cache.block import Block


@dataclass(frozen=True, slots=True)
class Swapped:
    """A preempted sequence's KV in a tier: the blocks of its first ``num_tokens`` tokens, held until dropped."""

    blocks: tuple[Block, ...]
    num_tokens: int


@dataclass(frozen=True, slots=True)
class TierUse:
    """What the tiers hold and have done: blocks and files now, cumulative blocks, tokens and failures."""

    num_host_blocks: int = 0
    num_used_host_blocks: int = 0
    blocks_out: int = 0
    blocks_in: int = 0
    host_hit_tokens: int = 0
    disk_hit_tokens: int = 0
    disk_bytes: int = 0
    corrupt_files: int = 0
    disk_errors: int = 0
    host_evictions: int = 0
    disk_evictions: int = 0


class KVTiers(Protocol):
    """The tiers of one engine. All methods are the busy loop's and return at once, but for ``wait``."""

    @property
    def num_held(self) -> int:
        """Blocks that swapped sequences hold."""

    @property
    def outlives_engine(self) -> bool:
        """Whether a successor of this engine finds what is saved."""

    def find(self, block_hash: bytes) -> Block | None:
        """The block that holds these contents, to be restored from."""

    def save(self, block: Block) -> Block | None:
        """The device pool is about to give this published block new contents: where to copy it, or None."""

    def swap_out(self, blocks: ListOf[Block], num_tokens: int) -> tuple[Swapped, list[tuple[Block, Block]]] | None:
        """Hold these device blocks' contents, with the (source, destination) copies that takes; None, and nothing, if
        there is no room or computing the ``num_tokens`` tokens again is cheaper."""

    def restore(self, blocks: ListOf[Block], num_tokens: int) -> None:
        """These are copied into device blocks by the next step; ``num_tokens`` of them count as hits."""

    def drop(self, swapped: Swapped) -> None:
        """Let go of a swapped sequence's blocks."""

    def read(self, hashes: ListOf[bytes], is_above: Callable[[bytes], bool]) -> tuple[bytes, ...]:
        """Begin to fetch what of a chain only a slower tier has, and not the device (``is_above``); the hashes that are
        on their way."""

    def patience(self, num_tokens: int, end: int) -> float:
        """Seconds that it is worth to wait for the KV of the last ``num_tokens`` of ``end`` tokens."""

    def is_reading(self, block_hash: bytes) -> bool:
        """Whether a block with these contents is on its way from a slower tier."""

    def poll(self) -> None:
        """Take in what slower tiers have finished."""

    def wait(self, seconds: float) -> None:
        """Until a slower tier has finished something, or the time is over."""

    def begin_step(self) -> None:
        """The copies asked for since the last step are launched with this one."""

    def end_step(self) -> None:
        """The oldest launched step is done, its copies too."""

    def use(self) -> TierUse:
        """For statistics."""

    def check_integrity(self) -> None:
        """Raise AssertionError unless every block is accounted for."""

    def close(self) -> None:
        """Finish what is being written."""


class NoTiers:
    """Implements ``KVTiers``: what leaves the device pool is gone."""

    num_held = 0
    outlives_engine = False

    def find(self, block_hash: bytes) -> Block | None:
        """Nothing is kept."""
        return None

    def save(self, block: Block) -> Block | None:
        """Nowhere."""
        return None

    def swap_out(self, blocks: ListOf[Block], num_tokens: int) -> tuple[Swapped, list[tuple[Block, Block]]] | None:
        """There is no room."""
        return None

    def restore(self, blocks: ListOf[Block], num_tokens: int) -> None:
        """Nothing was found, so nothing is restored."""

    def drop(self, swapped: Swapped) -> None:
        """Nothing was swapped."""

    def read(self, hashes: ListOf[bytes], is_above: Callable[[bytes], bool]) -> tuple[bytes, ...]:
        """Nothing comes."""
        return ()

    def patience(self, num_tokens: int, end: int) -> float:
        """None."""
        return 0.0

    def is_reading(self, block_hash: bytes) -> bool:
        """Never."""
        return False

    def poll(self) -> None:
        """Nothing to take in."""

    def wait(self, seconds: float) -> None:
        """Nothing will come."""

    def begin_step(self) -> None:
        """No copies."""

    def end_step(self) -> None:
        """No copies."""

    def use(self) -> TierUse:
        """All zero."""
        return TierUse()

    def check_integrity(self) -> None:
        """Nothing can be wrong."""

    def close(self) -> None:
        """Nothing is being written."""
