"""KV that leaves the device pool and comes back: swapped requests, prefixes in host memory and on disk.

``CoreHarness`` checks what each row reads, whatever was copied or read in between, and every block after each step.
"""

from dataclasses import dataclass, replace

import pytest
from core_harness import GATEWAY, CoreHarness, Sizes, make_add
from fake_model import VOCAB_SIZE
from hypothesis import HealthCheck, event, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from ledger import Choice

from engine_core.statistics import snapshot
from ipc.messages import Abort, WaitReason
from ipc.params import SamplingParams

both = pytest.mark.parametrize("overlap", [True, False])
TIGHT = Sizes(num_blocks=6, max_num_batched_tokens=64, num_host_blocks=32)
LONG, OTHER = list(range(12)) + [1], [5] * 20  # three blocks and a token; so much that nothing of LONG stays


def only_choice(engine: CoreHarness, request_id: int) -> Choice:
    return engine.ledgers[GATEWAY].entries[request_id].choices[0]


def serve(engine: CoreHarness, request_id: int, prompt: list[int], max_tokens: int = 2) -> None:
    engine.add(make_add(request_id, prompt, SamplingParams(max_tokens=max_tokens)))
    engine.run_until_idle()


def write_all(engine: CoreHarness) -> None:
    assert engine.disk is not None
    while engine.disk.orders:
        engine.disk.work()


# ---- swap


@both
@pytest.mark.parametrize("enable_prefix_caching", [True, False])
def test_a_swapped_request_computes_each_token_once(overlap: bool, enable_prefix_caching: bool) -> None:
    engine = CoreHarness(
        Sizes(
            num_blocks=12,
            max_num_seqs=8,
            max_model_len=48,
            enable_prefix_caching=enable_prefix_caching,
            overlap=overlap,
            num_host_blocks=64,
        )
    )
    for index in range(8):
        engine.add(make_add(index, [index] * 9, SamplingParams(max_tokens=30, seed=index)))
    engine.run_until_idle()
    counters = engine.scheduler.counters
    assert counters.preemptions_by_swap == counters.preemptions > 0
    stats = snapshot(engine.core, 7)
    assert (stats.preemptions_swap, stats.preemptions_recompute) == (counters.preemptions, 0)
    assert stats.kv_blocks_out > 0
    assert stats.kv_blocks_in > 0
    assert engine.device.num_tokens_computed == 8 * (9 + 29)


def test_without_room_on_the_host_a_request_is_computed_again() -> None:
    engine = CoreHarness(Sizes(num_blocks=12, max_num_seqs=8, max_model_len=48, num_host_blocks=1, overlap=False))
    for index in range(8):
        engine.add(make_add(index, [index] * 9, SamplingParams(max_tokens=30)))
    engine.run_until_idle()
    counters = engine.scheduler.counters
    assert counters.preemptions > counters.preemptions_by_swap


def preempt_one(num_prompt_logprobs: int = -1) -> CoreHarness:
    """Request 2 is swapped out and waits behind request 1."""
    engine = CoreHarness(Sizes(num_blocks=5, max_num_seqs=2, max_num_batched_tokens=3, num_host_blocks=8))
    engine.add(make_add(1, [1, 2, 3], SamplingParams(max_tokens=14)))
    for _ in range(3):
        engine.step()
    add = make_add(2, list(range(12)), SamplingParams(max_tokens=2), num_prompt_logprobs=num_prompt_logprobs)
    engine.add(add)
    while not engine.kv.tiers.num_held:
        engine.step()
    return engine


def test_prompt_logprobs_go_on_after_a_swap() -> None:
    """The ledger wants all of them, in order and once."""
    engine = preempt_one(num_prompt_logprobs=0)
    engine.run_until_idle()
    assert "p" in only_choice(engine, 2).story
    assert engine.device.num_tokens_computed == 3 + 13 + 12 + 1


def test_a_request_that_ends_while_it_is_swapped_gives_its_host_blocks_back() -> None:
    engine = preempt_one()
    engine.want(Abort(2))
    engine.step()
    assert engine.kv.tiers.num_held == 0
    engine.run_until_idle()


def test_the_integrity_check_finds_a_lost_host_block() -> None:
    engine = preempt_one()
    assert engine.tiers is not None
    engine.run_until_idle()
    engine.tiers.pool.take(1)
    with pytest.raises(AssertionError, match="references to host blocks"):
        engine.scheduler.check_integrity()


# ---- prefixes


@both
def test_a_prefix_that_the_device_evicts_is_restored_from_the_host(overlap: bool) -> None:
    engine = CoreHarness(replace(TIGHT, overlap=overlap))
    serve(engine, 1, LONG)
    serve(engine, 2, OTHER)
    computed = engine.device.num_tokens_computed
    serve(engine, 3, LONG)
    assert engine.device.num_tokens_computed - computed == 2, "one of the prompt, one of the output"
    assert engine.kv.tiers.use().host_hit_tokens == 12
    assert engine.scheduler.counters.prefix_cache_hits == 12
    assert "h" in only_choice(engine, 3).story


def test_the_host_forgets_what_was_used_least_recently() -> None:
    engine = CoreHarness(replace(TIGHT, num_host_blocks=8, overlap=False))
    for request_id, prompt in enumerate([LONG, [7] * 20, [8] * 20, [9] * 20]):
        serve(engine, request_id, prompt)
    before = engine.device.num_tokens_computed
    serve(engine, 9, LONG)
    assert engine.device.num_tokens_computed - before == 13 + 1


def test_restored_blocks_are_shared_once_they_are_there() -> None:
    engine = CoreHarness(replace(TIGHT, num_blocks=8, overlap=False))
    serve(engine, 1, LONG)
    serve(engine, 2, [5] * 28)
    before = engine.kv.tiers.use().blocks_in
    engine.add(make_add(3, LONG, SamplingParams(max_tokens=6)))
    engine.step()
    engine.add(make_add(4, LONG, SamplingParams(max_tokens=2)))
    engine.run_until_idle()
    assert engine.kv.tiers.use().blocks_in - before == 3


# ---- disk


def on_disk(overlap: bool = False) -> CoreHarness:
    """LONG is on disk, and nowhere else: the second of two engines."""
    sizes = replace(TIGHT, has_disk=True, overlap=overlap)
    first, second = CoreHarness(sizes), CoreHarness(sizes)
    assert first.disk is not None
    assert second.disk is not None
    serve(first, 1, LONG)
    serve(first, 2, OTHER)
    first.kv.tiers.close()
    second.disk.contents = first.disk.contents
    assert len(second.disk.contents) >= 3
    return second


@both
def test_what_only_the_device_has_is_on_disk_after_a_drain(overlap: bool) -> None:
    sizes = replace(TIGHT, has_disk=True, overlap=overlap)
    first, second = CoreHarness(sizes), CoreHarness(sizes)
    assert first.disk is not None
    assert second.disk is not None
    serve(first, 1, LONG)
    assert not first.disk.orders
    first.drain()
    first.core.run(lambda core: None)
    assert first.device.is_shut_down
    assert first.disk.is_closed
    second.disk.contents = first.disk.contents
    serve(second, 2, LONG)
    assert second.kv.tiers.use().disk_hit_tokens == 12
    assert snapshot(second.core, 7).kv_hits_disk == 12


@both
def test_a_prompt_waits_for_the_disk_and_is_not_computed(overlap: bool) -> None:
    engine = on_disk(overlap)
    engine.add(make_add(3, LONG, SamplingParams(max_tokens=2)))
    engine.add(make_add(4, [9, 9], SamplingParams(max_tokens=3)))
    engine.step()
    assert engine.scheduler.waiting_by_reason() == {WaitReason.KV_DISK: 1}
    assert len(engine.scheduler.running) == 1, "others go on"
    engine.run_until_idle()
    assert engine.device.num_tokens_computed == 2 + (2 + 2)
    assert engine.kv.tiers.use().disk_hit_tokens == 12
    assert engine.kv.tiers.use().host_hit_tokens == 0
    assert only_choice(engine, 3).story == "qbahc"


def test_a_second_prompt_waits_for_the_same_read() -> None:
    engine = on_disk()
    for request_id in (3, 4):
        engine.add(make_add(request_id, LONG, SamplingParams(max_tokens=2)))
    engine.step()
    assert engine.disk is not None
    assert len(engine.disk.orders) <= 3
    engine.run_until_idle()
    assert engine.device.num_tokens_computed == 4


def test_what_cannot_be_read_is_computed() -> None:
    engine = on_disk()
    assert engine.disk is not None
    engine.disk.is_broken = True
    serve(engine, 3, LONG)
    assert engine.device.num_tokens_computed == 13 + 1
    assert engine.kv.tiers.use().disk_hit_tokens == 0


def test_a_disk_that_takes_too_long_is_not_waited_for() -> None:
    """The clock goes by a nanosecond a look, and patience is a handful of looks."""
    engine = on_disk()
    engine.kv.tiers.patience = lambda num_tokens, end: 3e-9  # type: ignore[method-assign]
    engine.add(make_add(4, [9, 9], SamplingParams(max_tokens=9)))
    engine.step()
    engine.add(make_add(3, LONG, SamplingParams(max_tokens=2)))
    engine.run_until_idle()
    assert engine.disk is not None
    assert engine.device.num_tokens_computed == (2 + 8) + (13 + 1)
    assert engine.disk.orders, "the disk is still at it"
    write_all(engine)
    serve(engine, 5, OTHER)
    serve(engine, 6, [*LONG, 1])
    engine.scheduler.check_integrity()


def test_a_request_that_ends_while_it_waits_for_the_disk_leaves_nothing_behind() -> None:
    engine = on_disk()
    engine.add(make_add(4, [9, 9], SamplingParams(max_tokens=9)))
    engine.step()
    engine.add(make_add(3, LONG, SamplingParams(max_tokens=2), n=2))
    engine.step()
    engine.want(Abort(3))
    engine.step()
    assert engine.scheduler.waiting_by_reason() == {}
    engine.run_until_idle()


def test_nothing_is_written_before_its_copy_is_made() -> None:
    engine = CoreHarness(replace(TIGHT, has_disk=True, overlap=True))
    serve(engine, 1, LONG)
    engine.add(make_add(2, OTHER, SamplingParams(max_tokens=3)))
    engine.step()
    assert engine.disk is not None
    assert not engine.disk.orders, "the step that copies is not committed"
    engine.step()
    assert engine.disk.orders
    engine.run_until_idle()


# ---- everything at once


@st.composite
def sizes(draw: st.DrawFn) -> Sizes:
    """A pool for about two requests, and a host for somewhat more."""
    return Sizes(
        num_blocks=draw(st.integers(9, 12)),
        block_size=2,
        max_num_seqs=draw(st.sampled_from([4, 3, 1])),
        max_num_batched_tokens=draw(st.sampled_from([16, 5, 2])),
        max_model_len=20,
        overlap=draw(st.booleans()),
        num_host_blocks=draw(st.sampled_from([16, 8, 3])),
        has_disk=draw(st.sampled_from([True, True, False])),
        preemption_mode=draw(st.sampled_from(["swap", "swap", "recompute"])),
        enable_prefix_caching=draw(st.sampled_from([True, True, True, False])),
    )


@dataclass(frozen=True, slots=True)
class Prompt:
    """One of a few long beginnings, cut somewhere, and an end of its own."""

    stem: int
    length: int
    tail: int
    max_tokens: int
    n: int
    num_prompt_logprobs: int

    @property
    def token_ids(self) -> list[int]:
        return [(self.stem * 5 + index) % VOCAB_SIZE for index in range(self.length)] + [self.tail]


prompts = st.builds(
    Prompt,
    stem=st.integers(0, 3),
    length=st.sampled_from([12, 11, 9, 8, 4]),
    tail=st.integers(0, 1),
    max_tokens=st.sampled_from([6, 4, 1]),
    n=st.sampled_from([1, 1, 1, 2]),
    num_prompt_logprobs=st.sampled_from([-1, -1, -1, -1, 0]),
)


class TiersMachine(RuleBasedStateMachine):
    """More prompts than the tiers hold, and a disk that works when it likes to. Engines come and go; disks stay."""

    def __init__(self) -> None:
        super().__init__()
        self.harness: CoreHarness | None = None
        self.num_requests = 0

    @property
    def engine(self) -> CoreHarness:
        assert self.harness is not None
        return self.harness

    @initialize(shape=sizes())
    def build(self, shape: Sizes) -> None:
        self.harness = CoreHarness(shape)

    @rule(
        batch=st.lists(prompts, min_size=1, max_size=4),
        num_steps=st.integers(1, 10),
        num_orders=st.sampled_from([9, 2, 0]),
        is_broken=st.sampled_from([False, False, False, True]),
    )
    def turn(self, batch: list[Prompt], num_steps: int, num_orders: int, is_broken: bool) -> None:
        """Some arrive, some steps are made, and the disk does some of its work in between."""
        for prompt in batch:
            self.num_requests += 1
            params = SamplingParams(max_tokens=prompt.max_tokens)
            logprobs = prompt.num_prompt_logprobs
            self.engine.add(
                make_add(self.num_requests, prompt.token_ids, params, n=prompt.n, num_prompt_logprobs=logprobs)
            )
        for _ in range(num_steps):
            self.engine.step()
            self._work_on_disk(num_orders, is_broken)

    def _work_on_disk(self, num_orders: int, is_broken: bool) -> None:
        disk = self.engine.disk
        if disk is not None:
            disk.is_broken = is_broken
            for _ in range(min(num_orders, len(disk.orders))):
                disk.work()
            disk.is_broken = False

    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        entries = self.engine.ledgers[GATEWAY].entries if self.engine.ledgers else {}
        running = [request_id for request_id, entry in entries.items() if entry.is_accepted and not entry.is_ended]
        if running:
            self.engine.want(Abort(data.draw(st.sampled_from(running))))
            self.engine.step()

    @rule()
    def go_idle(self) -> None:
        self.engine.run_until_idle()

    @rule(is_crash=st.booleans())
    def restart(self, is_crash: bool) -> None:
        """A crash loses what the disk has not done."""
        old = self.engine
        if not is_crash:
            old.run_until_idle()
            old.kv.tiers.close()
        self._tell()
        self.harness = CoreHarness(old.sizes)
        if old.disk is not None:
            assert self.engine.disk is not None
            self.engine.disk.contents = dict(old.disk.contents)

    def _tell(self) -> None:
        use = self.engine.kv.tiers.use()
        for name in ("blocks_out", "blocks_in", "host_hit_tokens", "disk_hit_tokens"):
            event(f"{name}: {getattr(use, name) > 0}")
        event(f"swapped: {self.engine.scheduler.counters.preemptions_by_swap > 0}")

    def teardown(self) -> None:
        if self.harness is not None and not self.harness.is_broken:
            self.harness.run_until_idle()
            self._tell()


TestTiersMachine = TiersMachine.TestCase
TestTiersMachine.settings = settings(
    max_examples=150,
    stateful_step_count=40,
    derandomize=True,
    report_multiple_bugs=False,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
