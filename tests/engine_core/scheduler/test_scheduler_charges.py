"""Costs on a clock of its own: shares of steps by tokens, blocks held by time."""

import random
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import pytest
from core_harness import CoreHarness, Sizes, make_add

from engine_core import registry
from engine_core.kv_cache.block import Block
from engine_core.scheduler.charges import Charges
from engine_core.sequence import Request, Sequence
from engine_core.step import ScheduledSequence
from ipc.messages import Abort, Outputs
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


def commit(charges: Charges, launched_ns: int, tokens: dict[Sequence, int]) -> None:
    """A step with so many tokens of each is done."""
    scheduled = [ScheduledSequence(0, 0, num_tokens, samples=True) for num_tokens in tokens.values()]
    charges.commit(launched_ns, sum(tokens.values()), tokens, scheduled)


def test_a_step_is_shared_out_by_tokens() -> None:
    clock = Clock()
    charges, long, short = Charges(clock), sequence(0), sequence(0)
    clock.now = 1000
    commit(charges, 200, {long: 7, short: 1})
    assert (long.device_ns, short.device_ns) == (700, 100)


def test_overlapping_steps_are_not_counted_twice() -> None:
    clock = Clock()
    charges, seq = Charges(clock), sequence(0)
    clock.now = 1000
    commit(charges, 0, {seq: 1})
    clock.now = 1300
    commit(charges, 900, {seq: 1})  # launched before the one before it was done
    assert seq.device_ns == 1300


def test_blocks_by_time() -> None:
    clock = Clock()
    charges, seq = Charges(clock), sequence(3)
    clock.now = 50
    charges.begin(seq)
    clock.now = 100
    commit(charges, 60, {seq: 1})
    clock.now = 104
    charges.grow(seq)
    assert seq.kv_block_ns == 150
    seq.block_table.blocks.append(Block(9))
    clock.now = 110
    charges.settle(seq)
    assert seq.kv_block_ns == 190
    charges.settle(seq)
    assert seq.kv_block_ns == 190


def test_a_block_that_comes_before_the_first_commit_counts_from_the_beginning() -> None:
    clock = Clock()
    charges, seq = Charges(clock), sequence(1)
    commit(charges, 0, {seq: 1})
    clock.now = 50
    charges.begin(seq)  # again, after it was preempted
    clock.now = 60
    charges.grow(seq)
    seq.block_table.blocks.append(Block(9))
    clock.now = 70
    charges.settle(seq)
    assert seq.kv_block_ns == 40


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


# ---- in a scheduler, beside an oracle


@dataclass(slots=True)
class Account:
    device_ns: float = 0.0
    kv_block_ns: int = 0
    since: int = 0


class ChargesBesideOracle(Charges):
    """Looks at all blocks of a step's sequences at each commit, and compares whenever an account is settled."""

    def __init__(self, clock: Callable[[], int]) -> None:
        def observed() -> int:
            self.now = clock()
            return self.now

        super().__init__(observed)
        self.now = 0
        self.committed = 0
        self.num_grown = 0
        self.accounts: defaultdict[Sequence, Account] = defaultdict(Account)
        self.settled: dict[Sequence, tuple[int, int]] = {}  # what its last output says

    def begin(self, seq: Sequence) -> None:
        super().begin(seq)
        self.accounts[seq].since = self.now

    def grow(self, seq: Sequence) -> None:
        super().grow(seq)
        self.num_grown += 1

    def settle(self, seq: Sequence) -> None:
        super().settle(seq)
        self.hold(seq)
        if not seq.is_finished:  # else its last output was made: nobody hears of what it still costs
            account = self.accounts[seq]
            assert (seq.device_ns, seq.kv_block_ns) == (account.device_ns, account.kv_block_ns)
            self.settled[seq] = (round(account.device_ns), account.kv_block_ns)

    def commit(
        self,
        launched_ns: int,
        num_tokens: int,
        sequences: Iterable[Sequence],
        scheduled: Iterable[ScheduledSequence],
    ) -> None:
        sequences, scheduled = list(sequences), list(scheduled)
        assert num_tokens == sum(entry.num_tokens for entry in scheduled)
        super().commit(launched_ns, num_tokens, sequences, scheduled)
        token_ns = (self.now - max(launched_ns, self.committed)) / num_tokens
        self.committed = self.now
        for seq, entry in zip(sequences, scheduled, strict=True):
            self.accounts[seq].device_ns += token_ns * entry.num_tokens
            self.hold(seq)

    def hold(self, seq: Sequence) -> None:
        account = self.accounts[seq]
        account.kv_block_ns += (self.now - account.since) * seq.block_table.num_blocks
        account.since = self.now


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("policy", registry.names("policy"))
def test_the_sums_are_those_of_looking_at_every_block_at_every_commit(policy: str, overlap: bool) -> None:
    draw = random.Random(policy)
    num_grown = num_preemptions = num_swaps = 0
    for _ in range(12):
        block_size = draw.randint(1, 3)
        engine = CoreHarness(
            Sizes(
                num_blocks=-(-16 // block_size),
                block_size=block_size,
                max_num_seqs=draw.randint(2, 6),
                max_num_batched_tokens=draw.choice([2, 4, 16]),  # with few, some that run are not in each step
                max_model_len=24,
                policy=policy,
                overlap=overlap,
                num_host_blocks=draw.choice([0, 16]),
            )
        )
        charges = engine.scheduler._charges = ChargesBesideOracle(engine.scheduler._clock)
        costs = []
        for request_id in range(24):
            add = make_add(
                request_id,
                [draw.randint(0, 2) for _ in range(draw.randint(1, 5))],
                SamplingParams(max_tokens=draw.randint(0, 9), seed=0),
                n=draw.choice([1, 1, 3]),
                priority=draw.randint(0, 2),
                tenant=draw.choice("ab"),
                deadline_ns=draw.choice([0, 0, 2000]),
            )
            engine.add(add)
            for _ in range(draw.randint(0, 3)):
                costs += ended(engine.step())
            if draw.random() < 0.2 and request_id in engine.scheduler.requests:
                engine.want(Abort(request_id))
        costs += ended(engine.run_until_idle())
        assert sorted(costs) == sorted(charges.settled.values())
        num_grown += charges.num_grown
        num_preemptions += engine.scheduler.counters.preemptions
        num_swaps += engine.scheduler.counters.preemptions_by_swap
    assert min(num_grown, num_preemptions, num_swaps) > 10


def ended(sent: list[tuple[bytes, object]]) -> list[tuple[int, int]]:
    """What the choices cost whose last outputs these are."""
    outputs = [output for _, message in sent if isinstance(message, Outputs) for output in message.outputs]
    return [(output.device_ns, output.kv_block_ns) for output in outputs if output.finish is not None]
