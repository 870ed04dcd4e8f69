"""What the engine says of requests that wait: for what, and since when."""

import pytest
from core_harness import GATEWAY, CoreHarness, Sizes, make_add

from engine_core.statistics import snapshot
from ipc.codec import decode_for_gateway, encode
from ipc.messages import MOST_WAITING_REQUESTS, Abort, EventKind, WaitReason
from ipc.params import BeamParams, SamplingParams


def waits(engine: CoreHarness) -> dict[int, WaitReason]:
    """As it comes over the wire; nobody waits since before he came."""
    said = snapshot(engine.core, 7)
    assert decode_for_gateway(encode(said)) == said
    assert all(since_ns > 0 for _, _, since_ns in said.waiting_requests)
    return {request_id: WaitReason(reason) for request_id, reason, _ in said.waiting_requests}


@pytest.mark.parametrize("overlap", [True, False])
def test_the_next_one_has_a_reason_and_those_behind_it_the_policy(overlap: bool) -> None:
    engine = CoreHarness(Sizes(max_num_seqs=2, overlap=overlap))
    for request_id in range(1, 6):
        engine.add(make_add(request_id, [1, 2, 3], SamplingParams(max_tokens=4)))
    engine.step()
    assert waits(engine) == {3: WaitReason.SEQUENCE_SLOTS, 4: WaitReason.POLICY, 5: WaitReason.POLICY}
    since = {request_id: since_ns for request_id, _, since_ns in engine.core.waiting_requests()}
    engine.step()
    assert {request_id: since_ns for request_id, _, since_ns in engine.core.waiting_requests()} == since
    engine.run_until_idle()
    assert waits(engine) == {}


def test_a_request_of_which_a_choice_runs_does_not_wait() -> None:
    engine = CoreHarness(Sizes(max_num_seqs=1, overlap=False))
    engine.add(make_add(1, [1, 2, 3], SamplingParams(max_tokens=4), n=3))
    engine.add(make_add(2, [1, 2, 3], SamplingParams(max_tokens=4)))
    engine.step()
    assert waits(engine) == {2: WaitReason.SEQUENCE_SLOTS}
    engine.want(Abort(1))
    engine.run_until_idle()
    assert waits(engine) == {}


def test_one_that_is_preempted_waits_again() -> None:
    engine = CoreHarness(Sizes(num_blocks=8, max_num_seqs=2, overlap=False))
    for request_id in (1, 2):
        engine.add(make_add(request_id, [request_id, 2, 3, 4], SamplingParams(max_tokens=24)))
    while not engine.scheduler.counters.preemptions:
        engine.step()
    ((request_id, _, since_ns),) = engine.core.waiting_requests()
    (seq,) = engine.scheduler.requests[request_id].sequences
    assert [time_ns for kind, time_ns, _ in seq.events if kind == EventKind.PREEMPTED] == [since_ns]
    engine.run_until_idle()
    assert waits(engine) == {}


def test_one_whose_grammar_is_being_compiled() -> None:
    engine = CoreHarness(Sizes())
    engine.grammars.is_slow = True
    engine.add(make_add(1, [1, 2, 3], SamplingParams(max_tokens=4), n=2, grammar=""))
    engine.step()
    assert waits(engine) == {1: WaitReason.GRAMMAR}
    engine.grammars.finish()
    engine.run_until_idle()


def test_a_beam_search_is_not_among_them() -> None:
    engine = CoreHarness(Sizes(max_num_seqs=1))
    engine.add(make_add(1, [1, 2, 3], SamplingParams(max_tokens=4)))
    engine.add(make_add(2, [1, 2, 3], SamplingParams(max_tokens=3, num_logprobs=4), beam=BeamParams(2)))
    for _ in range(4):
        engine.step()
        assert set(waits(engine)) <= {1, 2}
    engine.run_until_idle()


def test_they_are_no_more_than_a_report_may_have() -> None:
    engine = CoreHarness(Sizes(max_num_seqs=1))
    for request_id in range(MOST_WAITING_REQUESTS + 20):
        engine.add(make_add(request_id, [1, 2, 3], SamplingParams(max_tokens=2)))
    engine.step()
    assert list(waits(engine)) == list(range(1, MOST_WAITING_REQUESTS + 1))
    engine.lose(GATEWAY)
    engine.core.step()
    assert waits(engine) == {}
