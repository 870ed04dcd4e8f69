"""Reference counts and the order in which free blocks are handed out."""

import random
from collections.abc import Callable

import pytest

from engine_core.kv_cache.block import Block
from engine_core.kv_cache.block_pool import BlockPool


def make_pool(num_blocks: int) -> tuple[BlockPool, list[int]]:
    """A pool, and the ids of the blocks whose contents were forgotten, in order."""
    evicted: list[int] = []
    return BlockPool(num_blocks, lambda block: evicted.append(block.block_id)), evicted


def ids(blocks: list[Block]) -> list[int]:
    return [block.block_id for block in blocks]


def publish(*blocks: Block) -> None:
    for block in blocks:
        block.block_hash = bytes([block.block_id])


def test_all_blocks_can_be_taken_once() -> None:
    pool, evicted = make_pool(4)
    assert sorted(ids(pool.take(4))) == [0, 1, 2, 3]
    assert pool.num_free == 0
    assert evicted == []
    with pytest.raises(ValueError, match="asked for 1 blocks, 0 are free"):
        pool.take(1)
    pool.check_integrity()


def test_taking_too_many_takes_none() -> None:
    pool, _ = make_pool(3)
    pool.take(1)
    with pytest.raises(ValueError, match="asked for 3"):
        pool.take(3)
    assert pool.num_free == 2
    pool.check_integrity()


def test_the_least_recently_released_is_forgotten_first_and_of_one_sequence_its_end() -> None:
    pool, evicted = make_pool(6)
    older, newer = pool.take(3), pool.take(3)
    publish(*older, *newer)
    pool.release(older)
    pool.release(newer)
    assert pool.take(6) == [*reversed(older), *reversed(newer)]
    assert evicted == ids([*reversed(older), *reversed(newer)])


def test_blocks_that_nobody_can_find_go_first() -> None:
    pool, evicted = make_pool(4)
    found, lost = pool.take(2), pool.take(2)
    publish(*found)
    pool.release(found)
    pool.release(lost)
    assert set(pool.take(2)) == set(lost)
    assert evicted == []
    pool.take(1)
    assert evicted == ids(found[-1:])


def test_a_taken_block_forgets_its_contents() -> None:
    pool, evicted = make_pool(1)
    blocks = pool.take(1)
    publish(*blocks)
    pool.release(blocks)
    assert [block.block_hash for block in blocks] == [b"\0"]
    assert [block.block_hash for block in pool.take(1)] == [None]
    assert evicted == [0]


def test_sharing_a_free_block_keeps_its_contents() -> None:
    pool, evicted = make_pool(2)
    (block,) = pool.take(1)
    publish(block)
    pool.release([block])
    pool.share([block])
    assert (pool.num_free, block.num_references) == (1, 1)
    assert pool.take(1) != [block]
    assert evicted == []
    assert block.block_hash is not None
    pool.check_integrity()


def test_a_shared_block_is_free_after_its_last_release() -> None:
    pool, _ = make_pool(1)
    blocks = pool.take(1)
    pool.share(blocks)
    pool.release(blocks)
    assert pool.num_free == 0
    pool.release(blocks)
    assert pool.num_free == 1
    pool.check_integrity()


def test_a_block_is_not_released_twice() -> None:
    pool, _ = make_pool(2)
    blocks = pool.take(1)
    pool.release(blocks)
    with pytest.raises(ValueError, match="released more often than taken"):
        pool.release(blocks)
    assert pool.num_free == 2
    pool.check_integrity()


def test_a_pool_has_blocks() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        make_pool(0)


def lose_a_block(pool: BlockPool) -> None:
    pool.take(1)[0].num_references = 0


def list_a_used_block(pool: BlockPool) -> None:
    pool.blocks[-1].num_references = 1


def miscount(pool: BlockPool) -> None:
    pool.num_free -= 1


def break_the_ring(pool: BlockPool) -> None:
    pool.blocks[1].previous_free = pool.blocks[2]


def make_a_cycle(pool: BlockPool) -> None:
    pool.blocks[2].next_free = pool.blocks[1]
    pool.blocks[1].previous_free = pool.blocks[2]


def skip_a_block(pool: BlockPool) -> None:
    pool.blocks[0].next_free = pool.blocks[2]
    pool.blocks[2].previous_free = pool.blocks[0]


@pytest.mark.parametrize(
    "corrupt", [lose_a_block, list_a_used_block, miscount, break_the_ring, make_a_cycle, skip_a_block]
)
def test_the_integrity_check_finds_what_is_broken(corrupt: Callable[[BlockPool], None]) -> None:
    pool, _ = make_pool(4)
    pool.check_integrity()
    corrupt(pool)
    with pytest.raises(AssertionError):
        pool.check_integrity()


def test_a_pool_behaves_like_a_list_in_order_of_value() -> None:
    """Random use against the obvious model: a list of free blocks, the next one first."""
    rng = random.Random(1)
    pool, evicted = make_pool(8)
    free, held, forgotten = list(pool.blocks), list[list[Block]](), list[int]()
    for _ in range(2000):
        match rng.randrange(4):
            case 0:
                count = rng.randint(0, min(3, len(free)))
                expected, free = free[:count], free[count:]
                forgotten += [block.block_id for block in expected if block.block_hash is not None]
                taken = pool.take(count)
                assert taken == expected
                held.append(taken)
                publish(*rng.sample(taken, rng.randint(0, count)))
            case 1 | 2 if held:
                blocks = held.pop(rng.randrange(len(held)))
                pool.release(blocks)
                for block in reversed(blocks):
                    if block.num_references == 0:
                        free.insert(len(free) if block.block_hash else 0, block)
            case 3:
                findable = [block for block in pool.blocks if block.block_hash is not None]
                blocks = rng.sample(findable, min(2, len(findable)))
                pool.share(blocks)
                held.append(blocks)
                free = [block for block in free if block not in blocks]
        assert pool.num_free == len(free)
        pool.check_integrity()
    assert evicted == forgotten
    assert len(forgotten) > 100
