"""Which host block holds what, and for whom: what the scheduler's machine cannot see from outside."""

import pytest
from order_book import OrderBook

from engine_core.kv_cache.block import Block
from engine_core.kv_cache.host_tier import HostTier
from engine_core.kv_cache.tier_costs import LEAST_PATIENCE, UNKNOWN_PATIENCE, TierCosts
from engine_core.step_cost import StepCost

SWAP = TierCosts("swap")


def published(block_id: int) -> Block:
    return Block(block_id, block_hash=bytes([block_id]))


def pass_step(tier: HostTier) -> None:
    tier.begin_step()
    tier.end_step()
    tier.check_integrity()


def save(tier: HostTier, *block_ids: int) -> None:
    for block_id in block_ids:
        assert tier.save(published(block_id)) is not None
    pass_step(tier)


def test_ids_lie_behind_those_of_the_device() -> None:
    tier = HostTier(100, 2, SWAP)
    saved = tier.save(published(3))
    assert saved is not None
    assert saved.block_id in (100, 101)
    assert tier.find(b"\3") is saved


def test_a_block_is_saved_once() -> None:
    tier = HostTier(100, 2, SWAP)
    save(tier, 3)
    assert tier.save(published(3)) is None


def test_a_block_whose_copy_is_on_its_way_is_not_given_away() -> None:
    tier = HostTier(100, 1, SWAP)
    assert tier.save(published(1)) is not None
    assert tier.save(published(2)) is None, "it would get other contents before it has these"
    tier.begin_step()
    assert tier.save(published(2)) is None
    tier.end_step()
    assert tier.use().host_evictions == 0
    assert tier.save(published(2)) is not None
    assert tier.find(b"\1") is None
    assert tier.use().host_evictions == 1


def test_a_restored_block_stays_until_its_copy_is_made_and_is_the_last_to_go() -> None:
    tier = HostTier(100, 2, SWAP)
    save(tier, 1, 2)
    block = tier.find(b"\1")
    assert block is not None
    tier.restore([block], 16)
    save(tier, 3)
    assert [tier.find(bytes([name])) is not None for name in (1, 2, 3)] == [True, False, True]
    assert tier.use().host_hit_tokens == 16


def test_a_swap_finds_what_is_here_and_takes_only_what_it_needs() -> None:
    tier = HostTier(100, 3, SWAP)
    save(tier, 1)
    found = tier.swap_out([published(1), published(2), Block(9)], 10)
    assert found is not None
    swapped, copies = found
    assert [(source.block_id, destination) for source, destination in copies] == [
        (2, swapped.blocks[1]),
        (9, swapped.blocks[2]),
    ]
    assert swapped.blocks[0] is tier.find(b"\1")
    assert swapped.blocks[1] is tier.find(b"\2"), "others may find it"
    assert tier.num_held == tier.use().num_used_host_blocks == 3
    tier.check_integrity()
    pass_step(tier)
    assert tier.save(published(4)) is None, "all are held"
    tier.drop(swapped)
    assert tier.num_held == 0
    assert tier.use().num_used_host_blocks == 2
    tier.check_integrity()


def test_a_swap_that_does_not_fit_changes_nothing() -> None:
    tier = HostTier(100, 2, SWAP)
    save(tier, 1, 2)
    assert tier.swap_out([published(1), Block(8), Block(9)], 10) is None
    assert [tier.find(bytes([name])) is not None for name in (1, 2)] == [True, True]
    assert tier.num_held == 0
    tier.check_integrity()


def test_what_comes_in_is_written_to_disk_once_its_copy_is_made() -> None:
    disk = OrderBook()
    tier = HostTier(100, 4, SWAP, disk)
    tier.save(published(1))
    tier.begin_step()
    tier.poll()
    assert disk.writes == []
    tier.end_step()
    assert disk.writes == [b"\1"]
    tier.check_integrity()
    disk.finish()
    tier.poll()
    assert tier.pool.num_free == 4
    tier.check_integrity()


def test_half_of_the_blocks_may_wait_for_the_disk() -> None:
    disk = OrderBook()
    tier = HostTier(100, 4, SWAP, disk)
    save(tier, 1, 2, 3)
    assert disk.writes == [b"\1", b"\2"]
    save(tier, 4, 5)  # 5 takes the place of 3, which was not written yet
    assert tier.find(b"\3") is None
    disk.finish()
    tier.poll()
    assert disk.writes == [b"\4", b"\5"]
    tier.check_integrity()


def test_a_read_block_is_found_when_it_is_there() -> None:
    disk = OrderBook(b"\1", b"\2")
    tier = HostTier(100, 4, SWAP, disk)
    assert tier.read([b"\1", b"\2", b"\3"], lambda block_hash: False) == (b"\1", b"\2")
    assert tier.read([b"\1"], lambda block_hash: False) == (b"\1",), "for another sequence"
    assert disk.reads == [b"\1", b"\2"], "once"
    assert tier.is_reading(b"\1")
    assert tier.find(b"\1") is None
    tier.check_integrity()
    disk.finish()
    tier.poll()
    block = tier.find(b"\1")
    assert block is not None
    assert not tier.is_reading(b"\1")
    tier.restore([block], 16)
    assert (tier.use().disk_hit_tokens, tier.use().host_hit_tokens) == (16, 0)
    pass_step(tier)
    tier.restore([block], 16)
    assert (tier.use().disk_hit_tokens, tier.use().host_hit_tokens) == (16, 16)
    pass_step(tier)
    assert disk.writes == [], "it is there already"


def test_a_failed_read_is_not_found_and_its_block_is_free() -> None:
    disk = OrderBook(b"\1")
    tier = HostTier(100, 1, SWAP, disk)
    tier.read([b"\1"], lambda block_hash: False)
    disk.finish(is_ok=False)
    tier.poll()
    assert tier.find(b"\1") is None
    assert tier.pool.num_free == 1
    tier.check_integrity()


def test_reading_the_end_of_a_chain_does_not_push_out_its_beginning() -> None:
    disk = OrderBook(b"\2", b"\3", b"\4")
    tier = HostTier(100, 3, SWAP, disk)
    save(tier, 1, 9)
    for _ in range(2):
        disk.finish()
        tier.poll()
    assert tier.read([b"\1", b"\2", b"\3", b"\4"], lambda block_hash: False) == (b"\2", b"\3")
    assert tier.find(b"\1") is not None
    assert tier.find(b"\x09") is None


def test_what_the_device_has_is_not_read() -> None:
    disk = OrderBook(b"\1", b"\2")
    tier = HostTier(100, 3, SWAP, disk)
    assert tier.read([b"\1", b"\2"], lambda block_hash: block_hash == b"\1") == (b"\2",)
    assert tier.read([b"\5", b"\1"], lambda block_hash: False) == (), "a chain with a gap is no chain"


def test_closing_writes_what_is_here() -> None:
    disk = OrderBook()
    tier = HostTier(100, 4, SWAP, disk)
    save(tier, 1, 2, 3, 4)
    assert len(disk.writes) == 2
    tier.close()
    assert len(disk.writes) == 4


# ---- costs


@pytest.mark.parametrize(
    ("mode", "bytes_per_second", "prefers_swap"),
    [("swap", 1.0, True), ("recompute", 1e12, False), ("auto", 1e9, True), ("auto", 1e3, False), ("auto", 0.0, True)],
)
def test_auto_takes_what_costs_less(mode: str, bytes_per_second: float, prefers_swap: bool) -> None:
    """160 tokens take 0.16 s to compute; their 10 blocks of 1,000 bytes are copied twice."""
    cost = StepCost(floor=0.001, row=0.001, sequence=0.0, context=0.0)
    costs = TierCosts(mode, 1000, bytes_per_second, cost)  # type: ignore[arg-type]
    assert costs.prefers_swap(160, 10) is prefers_swap


def test_a_disk_is_worth_as_long_as_computing_takes() -> None:
    cost = StepCost(floor=0.001, row=0.001, sequence=0.0, context=1e-6)
    costs = TierCosts(step_cost=cost)
    assert costs.patience(1000, 2000) == pytest.approx(1.0 + 1e-6 * 1000 * 1500.5)
    assert costs.patience(1, 1) == LEAST_PATIENCE
    assert TierCosts().patience(1000, 2000) == UNKNOWN_PATIENCE


def test_a_tier_that_may_not_swap_still_keeps_prefixes() -> None:
    tier = HostTier(100, 4, TierCosts("recompute"))
    assert tier.swap_out([Block(1)], 10) is None
    save(tier, 1)
    assert tier.find(b"\1") is not None
