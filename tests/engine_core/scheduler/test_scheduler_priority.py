"""The policy ``priority``: who has a higher one takes a lower one's place, and never an equal's."""

import pytest
from core_harness import GATEWAY, CoreHarness, Sizes, make_add
from hypothesis import given, settings
from hypothesis import strategies as st

from ipc.params import SamplingParams

both = pytest.mark.parametrize("overlap", [True, False])


def story(engine: CoreHarness, request_id: int) -> str:
    return engine.ledgers[GATEWAY].entries[request_id].choices[0].story


def start(engine: CoreHarness, num_steps: int = 3) -> None:
    """Two of low priority take both places."""
    for request_id in (1, 2):
        engine.add(make_add(request_id, [1, 2, request_id], SamplingParams(max_tokens=20), priority=5))
    for _ in range(num_steps):
        engine.step()


@both
def test_a_higher_priority_gets_the_blocks_of_lower_ones(overlap: bool) -> None:
    """It takes nearly the whole pool, so both make way at once, and come back."""
    engine = CoreHarness(Sizes(policy="priority", num_blocks=12, overlap=overlap))
    start(engine)
    engine.add(make_add(3, [3] * 43, SamplingParams(max_tokens=3), priority=4))
    for _ in range(2):
        engine.step()
    assert [seq.request.request_id for seq in engine.scheduler.running] == [3]
    engine.run_until_idle()
    assert "p" not in story(engine, 3)
    assert engine.scheduler.counters.preemptions == 2


@both
def test_a_higher_priority_takes_the_place_of_the_last_lower_one(overlap: bool) -> None:
    engine = CoreHarness(Sizes(policy="priority", max_num_seqs=2, overlap=overlap))
    start(engine)
    engine.add(make_add(3, [3] * 37, SamplingParams(max_tokens=3), priority=4))
    for _ in range(4):
        engine.step()
    assert [seq.request.request_id for seq in engine.scheduler.running] == [1, 3]
    engine.run_until_idle()
    assert "p" not in story(engine, 1) + story(engine, 3)
    assert story(engine, 2).count("p") == story(engine, 2).count("r") == 1


@both
def test_an_equal_priority_waits(overlap: bool) -> None:
    engine = CoreHarness(Sizes(policy="priority", max_num_seqs=2, overlap=overlap))
    start(engine)
    engine.add(make_add(3, [3], SamplingParams(max_tokens=3), priority=5, arrival_ns=0))
    engine.run_until_idle()
    assert engine.scheduler.counters.preemptions == 0


def test_first_come_first_served_preempts_nobody_for_a_place() -> None:
    engine = CoreHarness(Sizes(policy="fcfs", max_num_seqs=2))
    start(engine)
    engine.add(make_add(3, [3], SamplingParams(max_tokens=3), priority=-5, arrival_ns=0))
    engine.run_until_idle()
    assert engine.scheduler.counters.preemptions == 0


@both
@given(
    wishes=st.lists(
        st.tuples(st.integers(0, 3), st.integers(1, 9), st.integers(1, 12), st.integers(1, 3), st.integers(0, 4)),
        min_size=1,
        max_size=10,
    )
)
@settings(derandomize=True, deadline=None, max_examples=60)
def test_there_is_no_ping_pong(overlap: bool, wishes: list[tuple[int, int, int, int, int]]) -> None:
    """Slots alone are short: each admission for the first time costs at most one preemption, each resumption at most
    one by somebody strictly higher, so their number is bounded by the pairs of requests; and everybody ends."""
    engine = CoreHarness(Sizes(policy="priority", max_num_seqs=2, num_blocks=200, overlap=overlap))
    for request_id, (priority, num_prompt, max_tokens, n, num_steps) in enumerate(wishes):
        params = SamplingParams(max_tokens=max_tokens, seed=request_id)
        engine.add(make_add(request_id, [request_id] * num_prompt, params, priority=priority, n=n))
        for _ in range(num_steps):
            engine.step()
    engine.run_until_idle()
    sequences = [priority for priority, _, _, n, _ in wishes for _ in range(n)]
    most = sum(low > high for low in sequences for high in sequences)
    assert engine.scheduler.counters.preemptions <= most
