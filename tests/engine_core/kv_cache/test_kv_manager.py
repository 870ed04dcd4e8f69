"""Blocks for sequences: what is matched, given, copied, made findable and given back."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from order_book import OrderBook

from engine_core.kv_cache import prefix_cache
from engine_core.kv_cache.block import BlockTable
from engine_core.kv_cache.host_tier import HostTier
from engine_core.kv_cache.manager import KVCacheManager
from engine_core.kv_cache.prefix_cache import extra_keys
from engine_core.kv_cache.tier_costs import TierCosts


@dataclass
class Run:
    """A sequence as far as the manager sees it."""

    table: BlockTable = field(default_factory=BlockTable)
    hashes: list[bytes] = field(default_factory=list)


def begin(kv: KVCacheManager, token_ids: list[int], *, salt: str = "") -> tuple[Run, int]:
    """Match, then allocate: a sequence with blocks for all its tokens, and how many tokens were known."""
    run = Run()
    kv.extend_hashes(run.hashes, token_ids, extra_keys(salt=salt))
    shared = kv.match(run.hashes, len(token_ids))
    assert kv.allocate(run.table, len(token_ids), shared)
    return run, len(shared) * kv.block_size


def compute(kv: KVCacheManager, token_ids: list[int], *, salt: str = "") -> Run:
    """A sequence that has computed all its tokens."""
    run, num_known = begin(kv, token_ids, salt=salt)
    kv.publish(run.table, run.hashes, len(token_ids), num_known // kv.block_size)
    return run


def state(kv: KVCacheManager) -> object:
    """Everything that an operation which fails must not change."""
    order, block = [], kv.pool._sentinel.next_free
    while block is not kv.pool._sentinel:
        assert block is not None
        order.append(block.block_id)
        block = block.next_free
    return order, [(block.num_references, block.block_hash) for block in kv.pool.blocks], len(kv.prefix_cache)


@pytest.mark.parametrize(
    ("length", "known"), [(15, 0), (16, 0), (17, 16), (32, 16), (33, 32), (48, 32)], ids=lambda value: str(value)
)
def test_a_prompt_that_was_computed_before_leaves_a_token_to_compute(length: int, known: int) -> None:
    kv = KVCacheManager(16, 16)
    ids = list(range(length))
    for _ in range(2):
        kv.release(compute(kv, ids).table)
    run, num_known = begin(kv, ids)
    assert num_known == known
    assert run.table.num_blocks == -(-length // 16)
    kv.release(run.table)
    extended, num_known = begin(kv, [*ids, 1000, 1001])
    assert num_known == length // 16 * 16, "the chain goes on where the prompt ended"
    kv.release(extended.table)
    kv.check_integrity()
    assert kv.num_used_blocks == 0


def test_identical_prompts_at_once_share_nothing_that_is_not_computed() -> None:
    kv = KVCacheManager(8, 4)
    ids = list(range(9))
    one, _ = begin(kv, ids)
    other, num_known = begin(kv, ids)
    assert num_known == 0
    assert not set(one.table.block_ids) & set(other.table.block_ids)
    for run in (one, other):
        assert kv.publish(run.table, run.hashes, 9, 0) == 2
        kv.check_integrity()
    kv.release(one.table)
    kv.release(other.table)
    kv.check_integrity()
    assert len(kv.prefix_cache) == 2
    assert kv.num_used_blocks == 0
    assert begin(kv, ids)[1] == 8


def test_a_salt_keeps_prompts_apart() -> None:
    kv = KVCacheManager(16, 4)
    ids = list(range(9))
    compute(kv, ids, salt="mine")
    assert begin(kv, ids)[1] == 0
    assert begin(kv, ids, salt="yours")[1] == 0
    assert begin(kv, ids, salt="mine")[1] == 8


def test_only_computed_blocks_are_published() -> None:
    kv = KVCacheManager(8, 4)
    run, _ = begin(kv, list(range(14)))
    num_published, found = 0, []
    for num_computed in (0, 3, 4, 11, 12, 14):
        num_published = kv.publish(run.table, run.hashes, num_computed, num_published)
        found.append(len(kv.prefix_cache.lookup(run.hashes)))
    assert found == [0, 0, 1, 2, 3, 3]
    assert num_published == 3


def test_publishing_stops_at_the_known_hashes_and_never_goes_back() -> None:
    kv = KVCacheManager(8, 4)
    run, _ = begin(kv, list(range(12)))
    del run.hashes[1:]
    assert kv.publish(run.table, run.hashes, 12, 0) == 1
    assert kv.publish(run.table, run.hashes, 4, 2) == 2
    assert len(kv.prefix_cache) == 1


def test_an_aborted_prefill_leaves_only_what_it_computed() -> None:
    kv = KVCacheManager(8, 4)
    ids = list(range(13))
    first, _ = begin(kv, ids)
    kv.publish(first.table, first.hashes, 6, 0)
    second, num_known = begin(kv, ids)
    assert num_known == 4
    kv.release(first.table)
    assert begin(kv, ids)[1] == 4
    kv.check_integrity()
    assert second.table.blocks[0].num_references == 2


def test_a_block_with_new_contents_is_not_found_under_its_old_ones() -> None:
    kv = KVCacheManager(4, 4)
    first, second = list(range(16)), list(range(100, 116))
    kv.release(compute(kv, first).table)
    kv.release(compute(kv, second).table)
    run, num_known = begin(kv, first)
    assert num_known == 0
    kv.release(run.table)
    kv.check_integrity()


def test_without_prefix_caching_nothing_is_hashed_or_found() -> None:
    kv = KVCacheManager(8, 4, enable_prefix_caching=False)
    run = compute(kv, list(range(9)))
    assert run.hashes == []
    assert len(kv.prefix_cache) == 0
    assert begin(kv, list(range(9)))[1] == 0


@pytest.mark.parametrize(
    ("num_prompt", "num_shared", "is_copied"), [(1, 0, False), (4, 0, True), (5, 1, False), (8, 1, True), (9, 2, False)]
)
@pytest.mark.parametrize("enable_prefix_caching", [True, False])
def test_a_fork_shares_full_blocks_and_copies_the_rest(
    num_prompt: int, num_shared: int, is_copied: bool, enable_prefix_caching: bool
) -> None:
    kv = KVCacheManager(16, 4, enable_prefix_caching=enable_prefix_caching)
    first = compute(kv, list(range(num_prompt)))
    fork = kv.fork(first.table, num_prompt - 1)
    tables = [BlockTable(), BlockTable()]
    for table in tables:
        assert kv.allocate_fork(table, fork, num_prompt)
        copies = kv.begin_step()
        assert table.num_blocks == kv.num_blocks_for(num_prompt)
        assert table.blocks[:num_shared] == first.table.blocks[:num_shared]
        own = table.block_ids[num_shared:]
        assert not set(own) & set(first.table.block_ids)
        assert copies == (((first.table.block_ids[num_shared], own[0]),) if is_copied else ())
    kv.release(first.table)
    kv.check_integrity()
    for table in (fork.table, *tables):
        kv.release(table)
    kv.check_integrity()
    assert kv.num_used_blocks == 0


def test_a_fork_outlives_the_sequence_it_came_from() -> None:
    kv = KVCacheManager(4, 4)
    first = compute(kv, list(range(8)))
    held = first.table.block_ids
    fork = kv.fork(first.table, 7)
    kv.release(first.table)
    other = BlockTable()
    assert kv.allocate(other, 8)
    assert not set(other.block_ids) & set(held)
    before = state(kv)
    assert not kv.allocate_fork(BlockTable(), fork, 8)
    assert state(kv) == before


@given(
    num_blocks=st.integers(1, 8),
    runs=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 14), st.booleans()), max_size=12),
    wanted=st.integers(1, 40),
    grown=st.integers(0, 12),
)
@settings(derandomize=True, deadline=None, max_examples=300)
def test_what_can_be_allocated_is_allocated_and_what_cannot_changes_nothing(
    num_blocks: int, runs: list[tuple[int, int, bool]], wanted: int, grown: int
) -> None:
    """After any past: prompts of three kinds, computed and released or still held."""
    kv = KVCacheManager(num_blocks, 2)
    for kind, length, is_released in runs:
        ids = [kind] * length
        run = Run()
        kv.extend_hashes(run.hashes, ids, b"")
        if kv.allocate(run.table, length, kv.match(run.hashes, length)):
            kv.publish(run.table, run.hashes, length, 0)
            if is_released:
                kv.release(run.table)
    run = Run()
    kv.extend_hashes(run.hashes, [0] * wanted, b"")
    for length in (wanted, wanted + grown):
        shared = [] if run.table.blocks else kv.match(run.hashes, length)
        assert len(shared) * 2 < length
        before, can, num_before = state(kv), kv.can_allocate(run.table, length, shared), run.table.num_blocks
        assert kv.allocate(run.table, length, shared) is can
        if can:
            assert run.table.num_blocks == max(num_before, kv.num_blocks_for(length))
            assert run.table.blocks[: len(shared)] == shared or not shared
        else:
            assert state(kv) == before
            assert run.table.num_blocks == num_before
        kv.check_integrity()


def test_a_hit_on_free_blocks_counts_against_the_free_ones() -> None:
    """The known blocks are free themselves: claiming them takes them off the free list."""
    kv = KVCacheManager(4, 4)
    kv.release(compute(kv, list(range(13))).table)
    run = Run()
    kv.extend_hashes(run.hashes, list(range(17)), b"")
    shared = kv.match(run.hashes, 17)
    assert (len(shared), kv.pool.num_free) == (3, 4)
    before = state(kv)
    assert not kv.can_allocate(run.table, 17, shared)
    assert not kv.allocate(run.table, 17, shared)
    assert state(kv) == before
    assert kv.allocate(run.table, 16, shared)
    assert kv.pool.num_free == 0


def test_the_integrity_check_compares_pool_and_cache() -> None:
    kv = KVCacheManager(4, 4)
    run = compute(kv, list(range(8)))
    kv.check_integrity()
    kv.prefix_cache._blocks.popitem()
    with pytest.raises(AssertionError, match="does not know"):
        kv.check_integrity()
    assert run.table.num_blocks == 2


def test_colliding_hashes_lose_no_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a hash that is worth nothing contents would be confused; the accounts must still be right."""
    monkeypatch.setattr(prefix_cache, "hash_block", lambda parent, token_ids, extra: bytes([sum(token_ids) % 2]))
    kv = KVCacheManager(8, 2)
    runs = []
    for prompt in ([1, 2, 3, 4], [2, 2, 4, 4], [3, 4, 1, 2], [4, 4, 5, 6]):
        runs.append(compute(kv, prompt))
        kv.check_integrity()
    assert len(kv.prefix_cache) == 2
    for run in runs:
        kv.release(run.table)
    kv.check_integrity()
    assert kv.num_used_blocks == 0
    everything = BlockTable()
    assert kv.allocate(everything, 16)
    assert len(kv.prefix_cache) == 0
    kv.release(everything)
    kv.check_integrity()


def test_an_engine_that_ends_saves_what_was_used_last() -> None:
    """Three host blocks for what is published in seven; without a disk nobody would find them."""
    for disk, num_saved in ((None, 0), (OrderBook(), 3)):
        kv = KVCacheManager(8, 4, tiers=HostTier(8, 3, TierCosts(), disk))
        older, newer = compute(kv, list(range(8))), compute(kv, list(range(100, 120)))
        kv.release(older.table)
        kv.release(newer.table)
        assert kv.spill() is (num_saved > 0)
        copies = kv.begin_step()
        assert len(copies) == num_saved
        assert all(kv.tiers.find(block_hash) is not None for block_hash in newer.hashes[:num_saved])
        kv.end_step()
        kv.tiers.close()
        assert disk is None or sorted(disk.writes) == sorted(newer.hashes[:3])
