"""Costs on a clock of its own: shares of steps by tokens, blocks held by time."""

from engine_core.kv_cache.block import Block
from engine_core.scheduler.charges import Charges
from engine_core.sequence import Request, Sequence
from ipc.params import SamplingParams


class Clock:
    now = 0

    def __call__(self) -> int:
        return self.now


def sequence(num_blocks: int) -> Sequence:
    request = Request(1, b"", 0, SamplingParams(), 4)
    seq = Sequence(request, 0, [1, 2, 3, 4])
    seq.block_table.blocks += [Block(index) for index in range(num_blocks)]
    return seq


def test_a_step_is_shared_out_by_tokens() -> None:
    clock = Clock()
    charges, long, short = Charges(clock), sequence(0), sequence(0)
    clock.now = 1000
    charges.commit(launched_ns=200, num_tokens=8)
    charges.charge(long, 7)
    charges.charge(short, 1)
    assert (long.device_ns, short.device_ns) == (700, 100)


def test_overlapping_steps_are_not_counted_twice() -> None:
    clock = Clock()
    charges, seq = Charges(clock), sequence(0)
    clock.now = 1000
    charges.commit(0, 1)
    charges.charge(seq, 1)
    clock.now = 1300
    charges.commit(900, 1)  # launched before the one before it was done
    charges.charge(seq, 1)
    assert seq.device_ns == 1300


def test_blocks_by_time() -> None:
    clock = Clock()
    charges, seq = Charges(clock), sequence(3)
    clock.now = 50
    charges.begin(seq)
    clock.now = 100
    charges.commit(60, 1)
    charges.charge(seq, 1)
    assert seq.kv_block_ns == 150
    seq.block_table.blocks.append(Block(9))
    clock.now = 110
    charges.settle(seq)
    assert seq.kv_block_ns == 190
    charges.settle(seq)
    assert seq.kv_block_ns == 190


def test_nothing_is_held_while_it_waits() -> None:
    clock = Clock()
    charges, seq = Charges(clock), sequence(2)
    charges.begin(seq)
    clock.now = 10
    charges.settle(seq)
    blocks, seq.block_table.blocks = seq.block_table.blocks, []
    clock.now = 1000
    charges.begin(seq)
    seq.block_table.blocks = blocks
    clock.now = 1001
    charges.settle(seq)
    assert seq.kv_block_ns == 22
