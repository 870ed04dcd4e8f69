"""Deadlines: under every policy a request past its own is ended; ``deadline`` orders by slack and gives up early."""

import pytest
from core_harness import GATEWAY, CoreHarness, Sizes, make_add
from policy_simulation import Job, Outcome, Simulation, poisson
from sequence_cases import make_sequence

from engine_core import registry
from engine_core.scheduler.deadline import NO_DEADLINE_NS, Deadline
from engine_core.scheduler.deadlines import Deadlines
from engine_core.scheduler.output_lengths import MIN_EVIDENCE
from engine_core.scheduler.pace import MIN_STEPS
from engine_core.step import ScheduledSequence
from ipc.messages import FinishReason
from ipc.params import BeamParams, SamplingParams

both = pytest.mark.parametrize("overlap", [True, False])
every_policy = pytest.mark.parametrize("policy", registry.names("policy"))
SECOND = 1_000_000_000
STOP, LATE = FinishReason.STOP, FinishReason.DEADLINE


# ---- past the deadline


@both
@every_policy
def test_a_deadline_may_pass_at_any_time(policy: str, overlap: bool) -> None:
    """Waiting, computing the prompt, in flight, or behind another choice's prompt. The clock goes by looks at it."""
    seen = set()
    for deadline_ns in range(1, 240, 7):
        engine = CoreHarness(Sizes(max_num_seqs=2, max_num_batched_tokens=4, policy=policy, overlap=overlap))
        engine.add(make_add(1, list(range(9)), SamplingParams(max_tokens=9)))
        engine.add(make_add(2, list(range(9)), SamplingParams(max_tokens=9), n=4, deadline_ns=deadline_ns))
        engine.run_until_idle()
        assert engine.kv.num_used_blocks == 0
        entries = engine.ledgers[GATEWAY].entries
        assert entries[1].choices[0].finish is FinishReason.LENGTH
        finishes = [(choice.finish, bool(choice.token_ids)) for choice in entries[2].choices.values()]
        assert {finish for finish, _ in finishes} <= {LATE, FinishReason.LENGTH}
        seen |= {
            "nothing was said" * (finishes == [(LATE, False)] * 4),
            "something was said" * ((LATE, True) in finishes),
            "some ended before" * ((FinishReason.LENGTH, True) in finishes and LATE in dict(finishes)),
        }
    assert seen >= {"nothing was said", "something was said", "some ended before"}


@both
def test_a_request_in_flight_is_ended_and_its_slot_comes_back_later(overlap: bool) -> None:
    engine = CoreHarness(Sizes(overlap=overlap))
    engine.add(make_add(1, [1, 2, 3], SamplingParams(max_tokens=30), deadline_ns=SECOND))
    engine.step()
    engine.step()
    (seq,) = engine.scheduler.running
    engine.scheduler._clock = lambda: SECOND
    engine.step()
    assert engine.ledgers[GATEWAY].entries[1].choices[0].finish is LATE
    assert seq.steps_in_flight == 0
    engine.run_until_idle()


@both
def test_a_beam_search_past_its_deadline_ends_whole(overlap: bool) -> None:
    outcomes = set()
    for deadline_ns in range(1, 400, 23):
        engine = CoreHarness(Sizes(overlap=overlap, num_blocks=128))
        params = SamplingParams(max_tokens=6)
        engine.add(make_add(1, [1, 2, 3], params, n=2, beam=BeamParams(3), deadline_ns=deadline_ns))
        engine.run_until_idle()
        outcomes.add(tuple(choice.finish for choice in engine.ledgers[GATEWAY].entries[1].choices.values()))
    assert outcomes == {(LATE, LATE), (FinishReason.LENGTH, FinishReason.LENGTH)}


def test_deadlines_of_ended_requests_do_not_pile_up() -> None:
    deadlines = Deadlines()
    requests = [make_sequence(index, deadline_ns=1 + index).request for index in range(1000)]
    for request in requests:
        deadlines.add(request)
        deadlines.forget(request)
    assert deadlines._requests.num_entries <= 64
    deadlines.add(requests[5])
    deadlines.add(make_sequence(9).request)
    assert deadlines.take_expired(5) == []
    assert deadlines.take_expired(6) == [requests[5]]
    assert deadlines.take_expired(10_000) == []


# ---- the policy


def test_least_slack_comes_first_and_no_deadline_is_a_late_one() -> None:
    policy = Deadline()
    times = [90, 5, 0, 30]  # seconds; 0: none
    sequences = [make_sequence(index, deadline_ns=time * SECOND) for index, time in enumerate(times)]
    for seq in sequences:
        policy.add(seq)
    assert NO_DEADLINE_NS == 60 * SECOND
    assert [policy.pop().request.request_id for _ in times] == [1, 3, 2, 0]


def make_policy(*, step_ns: int, row_ns: int, output_tokens: int) -> Deadline:
    """One that has learned. Steps went as fast, outputs became as long."""
    policy, now = Deadline(), 0
    kinds = [
        (step_ns, {make_sequence(): ScheduledSequence(0, 9, 1, True)}),
        (100 * row_ns, {make_sequence(): ScheduledSequence(0, 0, 100, True)}),
    ]
    for _ in range(MIN_STEPS + 1):
        for elapsed_ns, step in kinds:
            policy.on_step(now, step)
            now += elapsed_ns
    for _ in range(MIN_EVIDENCE):
        seq = make_sequence(output=(5,) * output_tokens)
        seq.finish_reason = STOP
        policy.on_finished(seq)
    return policy


def test_slack_counts_what_is_still_to_be_done() -> None:
    """The longer prompt has to begin sooner though its deadline is later."""
    policy = make_policy(step_ns=10_000_000, row_ns=1_000_000, output_tokens=4)
    short, long = make_sequence(1, 10, deadline_ns=2 * SECOND), make_sequence(2, 1000, deadline_ns=2 * SECOND + 1)
    for seq in (short, long):
        policy.add(seq)
    assert policy.pop() is long


def test_who_cannot_make_it_is_given_up_once_and_the_others_are_not() -> None:
    """Prompts of 101 tokens: a tenth of a second, and 40 ms for outputs of at least four tokens."""
    policy = make_policy(step_ns=10_000_000, row_ns=1_000_000, output_tokens=4)
    doomed = make_sequence(1, 101, deadline_ns=139_000_000, max_model_len=400)
    close = make_sequence(2, 101, deadline_ns=141_000_000, max_model_len=400)
    free = make_sequence(3, 101)
    for seq in (doomed, close, free):
        policy.add(seq)
    assert list(policy.hopeless(1)) == [doomed]
    policy.remove(doomed)
    assert list(policy.hopeless(1)) == []
    assert list(policy.hopeless(2_000_000)) == [close]
    assert free in list(policy)


def test_who_will_likely_be_late_comes_after_the_others() -> None:
    """Outputs of 4 to 7 tokens take 40 to 70 ms: with 50 it may be in time, if it is served at once."""
    policy = make_policy(step_ns=10_000_000, row_ns=0, output_tokens=4)
    params = SamplingParams(max_tokens=100, eos_token_ids=(1,))
    unlikely, likely = (
        make_sequence(index, params=params, deadline_ns=deadline_ns, max_model_len=400)
        for index, deadline_ns in enumerate([50_000_000, 500_000_000])
    )
    free = make_sequence(3)
    for seq in (unlikely, likely, free):
        policy.add(seq)
    assert list(policy.hopeless(1)) == []
    assert policy.victim([unlikely, likely, free]) is unlikely
    assert [policy.pop() for _ in range(3)] == [likely, free, unlikely]


def test_nothing_is_given_up_before_something_is_known() -> None:
    policy, seq = Deadline(), make_sequence(1, 30, deadline_ns=100)
    policy.add(seq)
    assert list(policy.hopeless(100)) == []
    assert list(policy.hopeless(101)) == [seq]


def test_a_running_sequence_is_given_up_too() -> None:
    """It has to say 200 tokens more, at ten milliseconds each."""
    policy = make_policy(step_ns=10_000_000, row_ns=1_000_000, output_tokens=4)
    seq = make_sequence(
        params=SamplingParams(max_tokens=300, min_tokens=200), deadline_ns=5 * SECOND, max_model_len=400
    )
    policy.add(seq)
    policy.pop()
    assert list(policy.hopeless(2 * SECOND)) == []
    assert list(policy.hopeless(3 * SECOND + 1)) == [seq]


def made_it(outcomes: list[Outcome]) -> list[Outcome]:
    return [outcome for outcome in outcomes if outcome.finishes == [STOP]]


def test_more_deadlines_are_met_under_overload_than_first_come_first_served_meets() -> None:
    """Twice what the engine can do, for a while; patience differs."""
    jobs = [
        job
        for timeout, seed in ((2.0, 3), (6.0, 4), (20.0, 5))
        for job in poisson(30.0, 20.0, seed, timeout=timeout, max_tokens=128)
    ]
    met, wasted = {}, {}
    for policy in ("fcfs", "deadline"):
        sim = Simulation(policy)
        sim.add(jobs)
        sim.run()
        assert all(outcome.finishes in ([STOP], [LATE]) for outcome in sim.outcomes)
        # A step that has begun is not cut off.
        assert all(outcome.latency <= (outcome.job.timeout or 0) + 0.1 for outcome in made_it(sim.outcomes))
        met[policy] = len(made_it(sim.outcomes))
        late = [outcome for outcome in sim.outcomes if outcome.finishes == [LATE]]
        wasted[policy] = sum(outcome.num_tokens for outcome in late)
        early = [outcome for outcome in late if outcome.job.timeout and outcome.latency < outcome.job.timeout - 0.1]
        assert bool(early) == (policy == "deadline")
    assert met["deadline"] > 1.2 * met["fcfs"]
    assert wasted["deadline"] < 0.1 * wasted["fcfs"]


def test_few_are_given_up_where_all_can_be_served() -> None:
    sim = Simulation("deadline")
    sim.add(poisson(20.0, 20.0, 3, timeout=4.0, max_tokens=128))
    sim.run()
    assert len(made_it(sim.outcomes)) == len(sim.outcomes)


def test_who_has_no_deadline_does_not_starve() -> None:
    """Requests with deadlines take all there is, for ever."""
    sim = Simulation("deadline", max_num_seqs=1)
    (outcome,) = sim.add([Job(arrival=1.0, output_tokens=8)])
    sim.add([Job(arrival=index * 0.1, output_tokens=12, timeout=1.0) for index in range(1000)])
    while outcome.end is None:
        assert sim.step()
    assert outcome.end <= 1.0 + NO_DEADLINE_NS / SECOND + 1.0
