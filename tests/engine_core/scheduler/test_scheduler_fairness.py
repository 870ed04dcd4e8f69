"""The policy ``fair``: who floods waits behind itself, shares follow the weights, idleness saves up nothing."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_simulation import CPU_LIKE, GPU_LIKE, SECOND, Job, Outcome, Simulation, median_latency, poisson
from sequence_cases import make_sequence

from engine_core.scheduler.fair import OUTPUT_WEIGHT, QUANTUM, Fair
from engine_core.scheduler.tenant_counters import TenantCounters
from engine_core.step_cost import StepCost
from ipc.messages import FinishReason

SECONDS = 15.0


def capacity(cost: StepCost, max_num_seqs: int) -> float:
    """Jobs a second with every place taken."""
    sim = Simulation("fcfs", cost, max_num_seqs=max_num_seqs)
    sim.add(poisson(400.0, 1.0, seed=1))
    sim.run()
    return len(sim.outcomes) * SECOND / sim.now_ns


@pytest.mark.parametrize(
    ("cost", "max_num_seqs", "load", "factor"),
    [(GPU_LIKE, 32, 1.0, 1.5), (GPU_LIKE, 32, 2.0, 1.5), (CPU_LIKE, 4, 2.0, 2.0)],
)
def test_a_flood_does_not_slow_down_a_small_tenant(
    cost: StepCost, max_num_seqs: int, load: float, factor: float
) -> None:
    """Offered load 1:20, the flood alone being ``load`` times what the engine can do.

    Where each row takes time of its own, a step that others share takes longer, whoever comes first: at most twice as
    long, since two tenants share.
    """
    rate = load * capacity(cost, max_num_seqs)
    own = poisson(rate / 20, SECONDS, seed=5, tenant="small")
    alone = Simulation("fair", cost, max_num_seqs=max_num_seqs)
    alone.add(own)
    beside = {}
    for policy in ("fair", "fcfs"):
        sim = Simulation(policy, cost, max_num_seqs=max_num_seqs)
        small = sim.add(own)
        sim.add(poisson(rate, SECONDS, seed=6, tenant="flood"))
        sim.run()
        assert all(outcome.finishes == [FinishReason.STOP] for outcome in sim.outcomes)
        beside[policy] = median_latency(small)
    alone.run()
    expected = median_latency(alone.outcomes)
    assert beside["fair"] <= factor * expected
    if load > 1:
        assert beside["fcfs"] > 5 * expected, "it was no flood"


def served(outcomes: list[Outcome], sim: Simulation, tenant: str) -> float:
    """Weighted tokens so far, as a tenant is charged, over its weight; told from outside."""
    running = {seq.request.request_id for seq in sim.scheduler.running}
    return sum(
        (
            (outcome.job.prompt_tokens if outcome.num_tokens or index in running else 0)
            + OUTPUT_WEIGHT * outcome.num_tokens
        )
        / outcome.job.weight
        for index, outcome in enumerate(outcomes)
        if outcome.job.tenant == tenant
    )


MOST_PROMPT, MOST_OUTPUT, PLACES = 200, 200, 4
jobs = st.lists(
    st.builds(
        Job, arrival=st.just(0.0), prompt_tokens=st.integers(1, MOST_PROMPT), output_tokens=st.integers(1, MOST_OUTPUT)
    ),
    min_size=8,
    max_size=8,
)


@given(
    work=st.lists(jobs, min_size=2, max_size=3),
    weights=st.tuples(*[st.sampled_from([1.0, 2.0, 4.0])] * 3),
    late=st.floats(0.0, 5.0),
)
@settings(derandomize=True, deadline=None, max_examples=12)
def test_shares_of_those_that_have_work_differ_by_a_quantum_at_most(
    work: list[list[Job]], weights: tuple[float, ...], late: float
) -> None:
    """While all tenants have something waiting. The last one comes later, and is not owed what went on before."""
    sim = Simulation("fair", max_num_seqs=PLACES)
    names = [str(index) for index in range(len(work))]
    for name, own, weight in zip(names, work, weights, strict=False):
        arrival = late if name == names[-1] else 0.0
        # Three times over, so that there is work for a while.
        sim.add([replace(job, tenant=name, weight=weight, arrival=arrival) for job in own * 3])
    bound = QUANTUM + 2 * (MOST_PROMPT + OUTPUT_WEIGHT * MOST_OUTPUT) + OUTPUT_WEIGHT * PLACES
    start: dict[str, float] | None = None
    while sim.step():
        have_work = {seq.request.tenant for seq in sim.scheduler.policy}
        if have_work == set(names):
            now = {name: served(sim.outcomes, sim, name) for name in names}
            start = start or now
            gained = [now[name] - start[name] for name in names]
            assert max(gained) - min(gained) <= bound
    assert all(outcome.finishes == [FinishReason.STOP] for outcome in sim.outcomes)
    assert len(sim.scheduler.policy._tenants) == 0  # type: ignore[attr-defined]


def test_weights_are_shares() -> None:
    """Both flood; who weighs three times as much gets three times as many tokens."""
    sim = Simulation("fair", max_num_seqs=8)
    light = sim.add([Job(arrival=0.0, tenant="light") for _ in range(2000)])
    heavy = sim.add([Job(arrival=0.0, tenant="heavy", weight=3.0) for _ in range(2000)])
    sim.run(until=20.0)
    ratio = sum(outcome.num_tokens for outcome in heavy) / sum(outcome.num_tokens for outcome in light)
    assert 2.8 <= ratio <= 3.2


def test_a_long_runner_makes_way_after_a_quantum_and_is_not_thrown_out_again() -> None:
    """One place: tenants that take turns do so for at least a quantum, so the work done twice stays a part."""
    sim = Simulation("fair", max_num_seqs=1)
    jobs = [Job(arrival=0.0, output_tokens=3000, max_tokens=4000, tenant=tenant) for tenant in "ab"]
    sim.add(jobs)
    sim.run()
    assert all(outcome.finishes == [FinishReason.STOP] for outcome in sim.outcomes)
    assert 1 <= sim.scheduler.counters.preemptions <= 2 * OUTPUT_WEIGHT * 3000 / QUANTUM
    ends = [outcome.latency for outcome in sim.outcomes]
    assert max(ends) <= 1.3 * 2 * 3000 * GPU_LIKE.floor


def test_idle_tenants_are_forgotten() -> None:
    counters = TenantCounters()
    for index in range(1000):
        seq = make_sequence(index, tenant=f"t{index}")
        counters.enter(seq)
        counters.charge(seq, 10.0)
        counters.leave(seq)
    assert len(counters) == 0


def test_an_idle_tenant_keeps_its_debt_and_gets_no_credit() -> None:
    counters = TenantCounters()
    busy, greedy, late = (make_sequence(index, tenant=name) for index, name in enumerate(("busy", "greedy", "late")))
    counters.enter(busy)
    counters.enter(greedy)
    counters.charge(busy, 50.0)
    counters.charge(greedy, 80.0)
    counters.leave(greedy)
    assert counters.enter(late).served == 50.0
    assert counters.enter(greedy).served == 80.0


def test_a_prompt_is_charged_for_once() -> None:
    policy, seq = Fair(), make_sequence(1, num_prompt_tokens=10)
    policy.add(seq)
    policy.pop()
    seq.was_admitted = True
    policy.requeue(seq)
    policy.pop()
    assert policy._tenants.of(seq).served == 10.0
