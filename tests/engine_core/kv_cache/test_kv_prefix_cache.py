"""Which prefixes are known: the chain of hashes, and the blocks behind it."""

import hashlib
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_core.kv_cache.block import Block
from engine_core.kv_cache.prefix_cache import PrefixCache, extend_hashes, extra_keys, hash_block

ROOT = hashlib.sha256(b"model").digest()


def hashes_of(token_ids: list[int], block_size: int = 4, root: bytes = ROOT, extra: bytes = b"") -> list[bytes]:
    hashes: list[bytes] = []
    extend_hashes(hashes, token_ids, block_size, root, extra)
    return hashes


def test_a_hash_is_what_the_design_says() -> None:
    expected = hashlib.sha256(ROOT + struct.pack("<3I", 1, 2, 2**32 - 1) + b"extra").digest()
    assert hash_block(ROOT, [1, 2, 2**32 - 1], b"extra") == expected


def test_extra_keys_have_tag_length_and_bytes() -> None:
    assert extra_keys(adapter="", salt="") == b""
    assert extra_keys(adapter="", salt="äb") == b"salt\0" + struct.pack("<I", 3) + "äb".encode()
    assert extra_keys(adapter="x", salt="y") == b"adapter\0\1\0\0\0xsalt\0\1\0\0\0y"


texts = st.text("ab\0\1salt", max_size=4)


@given(st.tuples(texts, texts), st.tuples(texts, texts))
@settings(derandomize=True, deadline=None, max_examples=300)
def test_different_extra_keys_are_different_bytes(one: tuple[str, str], other: tuple[str, str]) -> None:
    same = extra_keys(adapter=one[0], salt=one[1]) == extra_keys(adapter=other[0], salt=other[1])
    assert same == (one == other)


def test_only_full_blocks_are_hashed() -> None:
    assert [len(hashes_of(list(range(length)))) for length in (0, 3, 4, 7, 8)] == [0, 0, 1, 1, 2]


@given(st.lists(st.integers(0, 3), max_size=20), st.integers(1, 5), st.lists(st.integers(0, 20), max_size=4))
@settings(derandomize=True, deadline=None, max_examples=100)
def test_a_chain_may_be_extended_in_pieces(token_ids: list[int], block_size: int, cuts: list[int]) -> None:
    pieces: list[bytes] = []
    for cut in [*sorted(cuts), len(token_ids)]:
        extend_hashes(pieces, token_ids[:cut], block_size, ROOT, b"")
    assert pieces == hashes_of(token_ids, block_size)
    parent = ROOT
    for index, block_hash in enumerate(pieces):
        ids = token_ids[index * block_size : (index + 1) * block_size]
        parent = hashlib.sha256(parent + struct.pack(f"<{block_size}I", *ids)).digest()
        assert block_hash == parent


def test_a_hash_covers_everything_before_its_block() -> None:
    one, other = hashes_of([1, 2, 3, 4, 5, 6, 7, 8]), hashes_of([0, 2, 3, 4, 5, 6, 7, 8])
    assert not set(one) & set(other)


@pytest.mark.parametrize(("root", "extra"), [(b"another model", b""), (ROOT, extra_keys(salt="s"))])
def test_what_must_not_be_shared_has_other_hashes(root: bytes, extra: bytes) -> None:
    ids = list(range(8))
    assert not set(hashes_of(ids)) & set(hashes_of(ids, root=root, extra=extra))


def test_lookup_stops_at_the_first_gap() -> None:
    cache, hashes = PrefixCache(), hashes_of(list(range(16)))
    blocks = [Block(index) for index in range(4)]
    for index in (0, 1, 3):
        cache.insert(hashes[index], blocks[index])
    assert cache.lookup(hashes) == blocks[:2]
    assert cache.lookup(hashes[1:]) == blocks[1:2]
    assert cache.lookup([]) == []


def test_a_second_block_with_the_same_contents_is_not_entered() -> None:
    cache, (block_hash,) = PrefixCache(), hashes_of([1, 2, 3, 4])
    first, second = Block(0), Block(1)
    cache.insert(block_hash, first)
    cache.insert(block_hash, second)
    assert cache.lookup([block_hash]) == [first]
    assert second.block_hash is None
    cache.check_integrity()


def test_a_block_keeps_its_entry() -> None:
    cache, hashes = PrefixCache(), hashes_of(list(range(8)))
    block = Block(0)
    cache.insert(hashes[0], block)
    cache.insert(hashes[1], block)
    assert len(cache) == 1
    assert cache.lookup(hashes) == [block]
    cache.check_integrity()


def test_eviction_forgets_one_entry_and_no_other() -> None:
    cache, hashes = PrefixCache(), hashes_of(list(range(12)))
    blocks = [Block(index) for index in range(3)]
    for block_hash, block in zip(hashes, blocks, strict=True):
        cache.insert(block_hash, block)
    cache.evict(blocks[1])
    assert cache.lookup(hashes) == blocks[:1]
    assert cache.lookup(hashes[2:]) == blocks[2:]
    assert len(cache) == 2


def test_a_block_that_is_not_known_is_not_evicted() -> None:
    cache, hashes = PrefixCache(), hashes_of(list(range(8)))
    known, unknown = Block(0), Block(1)
    cache.insert(hashes[0], known)
    unknown.block_hash = hashes[0]  # a duplicate: the entry is the other's
    for block in (unknown, Block(2)):
        with pytest.raises(ValueError, match="not in the prefix cache"):
            cache.evict(block)
    assert cache.lookup(hashes) == [known]


def test_the_integrity_check_finds_a_wrong_entry() -> None:
    cache, hashes = PrefixCache(), hashes_of(list(range(8)))
    block = Block(0)
    cache.insert(hashes[0], block)
    cache.check_integrity()
    block.block_hash = hashes[1]
    with pytest.raises(AssertionError, match="not its own"):
        cache.check_integrity()
