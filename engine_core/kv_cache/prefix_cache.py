"""Known prefixes: a chain of SHA-256 hashes over token ids, and the block that holds each link.

The hash of a block covers all tokens before it, so equal hashes mean equal prefixes. Extra keys (cache salt,
adapter generation) keep prefixes apart that must not be shared.
"""

import hashlib
from array import array
from collections.abc import Sequence as ListOf

from engine_core.kv_cache.block import Block


def extra_keys(**keys: str) -> bytes:
    """Tag, length and bytes of each non-empty key, in the order given."""
    parts = []
    for tag, value in keys.items():
        if value:
            data = value.encode()
            parts.append(tag.encode() + b"\0" + len(data).to_bytes(4, "little") + data)
    return b"".join(parts)


def hash_block(parent: bytes, token_ids: ListOf[int], extra: bytes) -> bytes:
    """SHA-256 over parent ‖ ids as u32 little-endian ‖ extra keys."""
    ids = array("I", token_ids)
    if ids.itemsize != 4:
        raise RuntimeError("array('I') is not 32 bits wide on this platform")
    return hashlib.sha256(parent + ids.tobytes() + extra).digest()


def extend_hashes(hashes: list[bytes], token_ids: ListOf[int], block_size: int, root: bytes, extra: bytes) -> None:
    """Append the hashes of the full blocks of ``token_ids`` that ``hashes`` does not cover yet."""
    parent = hashes[-1] if hashes else root
    for start in range(len(hashes) * block_size, len(token_ids) - block_size + 1, block_size):
        parent = hash_block(parent, token_ids[start : start + block_size], extra)
        hashes.append(parent)


class PrefixCache:
    """Hash to block. A second block with the same contents is not entered: tables stay append-only."""

    def __init__(self) -> None:
        self._blocks: dict[bytes, Block] = {}

    def __len__(self) -> int:
        return len(self._blocks)

    def lookup(self, hashes: ListOf[bytes]) -> list[Block]:
        """The blocks of the longest known beginning of ``hashes``."""
        found = []
        for block_hash in hashes:
            block = self._blocks.get(block_hash)
            if block is None:
                break
            found.append(block)
        return found

    def get(self, block_hash: bytes) -> Block | None:
        """The block with these contents."""
        return self._blocks.get(block_hash)

    def insert(self, block_hash: bytes, block: Block) -> None:
        """Make ``block`` findable, unless its contents already are or it already is."""
        if block.block_hash is None and block_hash not in self._blocks:
            self._blocks[block_hash] = block
            block.block_hash = block_hash

    def evict(self, block: Block) -> None:
        """Forget exactly this block's entry."""
        if block.block_hash is None or self._blocks.get(block.block_hash) is not block:
            raise ValueError(f"block {block.block_id} is not in the prefix cache")
        del self._blocks[block.block_hash]

    def check_integrity(self) -> None:
        """Raise AssertionError unless entries and blocks name each other."""
        for block_hash, block in self._blocks.items():
            assert block.block_hash == block_hash, f"block {block.block_id} is listed under a hash that is not its own"
