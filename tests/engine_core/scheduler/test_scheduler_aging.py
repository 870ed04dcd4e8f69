"""The policies ``short_first`` and ``long_first``: predicted work decides, and nobody starves."""

import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_simulation import Job, Simulation
from sequence_cases import make_sequence

from engine_core import registry
from engine_core.scheduler.output_lengths import MEMORY, MIN_EVIDENCE, OutputLengths
from engine_core.scheduler.pace import MIN_STEPS, Pace
from engine_core.scheduler.short_first import MOST_NS
from engine_core.sequence import Sequence
from engine_core.step import ScheduledSequence
from ipc.messages import FinishReason
from ipc.params import SamplingParams

SECOND = 1_000_000_000
by_work = pytest.mark.parametrize("name", ["short_first", "long_first"])


@by_work
@given(
    arrivals=st.lists(st.tuples(st.integers(0, 120), st.integers(1, 5000), st.integers(1, 5000)), max_size=40),
    num_pops=st.lists(st.integers(0, 3), min_size=40, max_size=40),
    learned=st.lists(st.integers(1, 3000), max_size=40),
)
@settings(derandomize=True, deadline=None, max_examples=150)
def test_nobody_is_overtaken_by_who_arrives_later_than_the_bound(
    name: str, arrivals: list[tuple[int, int, int]], num_pops: list[int], learned: list[int]
) -> None:
    """Whatever work is predicted, and however predictions change meanwhile."""
    policy, waiting = registry.load("policy", name)(), set[Sequence]()
    for index, (second, num_prompt, max_tokens) in enumerate(sorted(arrivals)):
        seq = make_sequence(
            index,
            num_prompt,
            params=SamplingParams(max_tokens=max_tokens, eos_token_ids=(1,)),
            arrival_ns=second * SECOND,
            max_model_len=20_000,
        )
        policy.add(seq)
        waiting.add(seq)
        for _ in range(min(num_pops[index], len(waiting))):
            first = policy.pop()
            waiting.remove(first)
            assert all(first.request.arrival_ns <= seq.request.arrival_ns + MOST_NS for seq in waiting)
        for length in learned[index : index + 1]:
            policy.on_finished(ended(length))


@by_work
def test_a_stream_of_better_ones_does_not_starve_anybody(name: str) -> None:
    """More than the engine can do, for ever; the odd one out is served when its head start is used up."""
    short, long = {"output_tokens": 8, "max_tokens": 8}, {"output_tokens": 4000, "max_tokens": 4000}
    usual, odd = (short, long) if name == "short_first" else (long, short)
    gap = 0.04 if name == "short_first" else 10.0
    sim = Simulation(name, max_num_seqs=1)
    (outcome,) = sim.add([Job(arrival=1.0, **odd)])
    sim.add([Job(arrival=index * gap, **usual) for index in range(int(90 / gap))])
    while outcome.first_token is None:
        assert sim.step()
    later = [other for other in sim.outcomes if other.job.arrival > 1.0 + MOST_NS / SECOND]
    assert not any(other.num_tokens for other in later)


def test_short_first_serves_most_sooner() -> None:
    jobs = [
        Job(arrival=index * 0.01, output_tokens=tokens, max_tokens=tokens)
        for index, tokens in enumerate([400, 10, 10, 10, 10] * 20)
    ]
    mean = {}
    for policy in ("fcfs", "short_first", "long_first"):
        sim = Simulation(policy, max_num_seqs=2)
        sim.add(jobs)
        sim.run()
        mean[policy] = statistics.mean(outcome.latency for outcome in sim.outcomes)
    assert mean["short_first"] < 0.7 * mean["fcfs"] < mean["long_first"]


# ---- what is learned


def ended(num_output: int, finish: FinishReason = FinishReason.STOP) -> Sequence:
    seq = make_sequence(output=(5,) * num_output, params=SamplingParams(max_tokens=10_000), max_model_len=20_000)
    seq.finish_reason = finish
    return seq


def going(num_output: int = 0, max_tokens: int = 1000, **params: object) -> Sequence:
    values = SamplingParams(max_tokens=max_tokens, eos_token_ids=(1,), **params)  # type: ignore[arg-type]
    return make_sequence(output=(5,) * num_output, params=values, max_model_len=20_000)


def learned(*lengths: int, times: int = MIN_EVIDENCE) -> OutputLengths:
    lengths_seen = OutputLengths()
    for _ in range(times):
        for length in lengths:
            lengths_seen.learn(ended(length))
    return lengths_seen


def test_without_evidence_an_output_is_as_long_as_it_may_be() -> None:
    assert OutputLengths().expected(going(10)) == 990
    assert OutputLengths().least(going(10)) == 1
    assert OutputLengths().least(going(10, min_tokens=50)) == 40


def test_expectations_follow_what_ended_and_what_has_come() -> None:
    lengths = learned(100)
    assert lengths.expected(going()) == 100
    assert lengths.expected(going(30)) == 70
    assert lengths.expected(going(max_tokens=20)) == 20
    assert (lengths.least(going()), lengths.most(going())) == (64, 127)  # by powers of two
    assert lengths.expected(going(500)) == 500  # none went on as far


def test_who_went_on_as_far_tells_of_the_rest() -> None:
    lengths = learned(10, 10, 10, 1000)
    assert lengths.expected(going()) == round((30 + 1000) / 4)
    assert lengths.expected(going(100, max_tokens=5000)) == 900
    assert (lengths.least(going()), lengths.most(going())) == (8, 1000)
    assert lengths.least(going(100, max_tokens=5000)) == 512 - 100


def test_ends_that_were_not_its_own_say_nothing() -> None:
    lengths = OutputLengths()
    for finish in (FinishReason.ABORT, FinishReason.DEADLINE, FinishReason.ERROR):
        for _ in range(MIN_EVIDENCE):
            lengths.learn(ended(3, finish))
    assert lengths.expected(going()) == 1000


def test_an_output_that_no_id_ends_goes_on_to_its_limit() -> None:
    seq = make_sequence(params=SamplingParams(max_tokens=1000), max_model_len=20_000)
    assert learned(100).expected(seq) == 1000


def test_old_outputs_are_forgotten() -> None:
    lengths = learned(1000, times=MEMORY)
    for _ in range(8 * MEMORY):
        lengths.learn(ended(10))
    assert 10 <= lengths.expected(going()) <= 20


def test_the_pace_is_that_of_the_steps() -> None:
    """Ten milliseconds a step of decodes, two microseconds a row of one with a prompt; idle times do not count."""
    pace, now = Pace(), 0
    decode = {make_sequence(index): ScheduledSequence(index, 9, 1, True) for index in range(3)}
    prompt = {make_sequence(): ScheduledSequence(0, 0, 500, True)}
    for _ in range(MIN_STEPS + 1):
        for step, elapsed in ((decode, 10_000_000), (prompt, 1_000_000), ({}, 7 * SECOND)):
            pace.on_step(now, step)
            now += elapsed
    assert pace.nanoseconds(1, 100) == pytest.approx(SECOND)
    assert pace.nanoseconds(501, 0) == pytest.approx(1_000_000)
