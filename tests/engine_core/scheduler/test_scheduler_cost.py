"""A step costs what it schedules, however many wait: calls are counted, not time."""

import sys
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import TypeVar

import pytest
from core_harness import GATEWAY, CoreHarness, Sizes, make_add

from engine_core import registry
from ipc.messages import FinishReason
from ipc.params import SamplingParams

T = TypeVar("T")
NUM_RUNNING = 4
policies = pytest.mark.parametrize("policy", registry.names("policy"))


def counted(function: Callable[[], T]) -> tuple[T, int]:
    """The function's value, and how many Python and C functions were called for it."""
    count = 0

    def profile(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(profile)
    try:
        value = function()
    finally:
        sys.setprofile(None)
    return value, count


FAR = 10**15  # nanoseconds


def make_engine(num_waiting: int, policy: str, *, deadline_ns: int = 0) -> CoreHarness:
    """Four requests generate; the others wait for a place."""
    engine = CoreHarness(
        Sizes(
            num_blocks=4096,
            block_size=16,
            max_num_seqs=NUM_RUNNING,
            max_num_batched_tokens=64,
            max_model_len=512,
            policy=policy,
            overlap=False,
        )
    )
    for request_id in range(NUM_RUNNING + num_waiting):
        params = SamplingParams(max_tokens=400)
        add = make_add(request_id, [request_id % 12] * 3, params, deadline_ns=deadline_ns and deadline_ns + request_id)
        engine.channel.inbox.append((GATEWAY, engine.read(GATEWAY, add)))
    for _ in range(3):
        engine.core.step()
    assert engine.scheduler.num_waiting == num_waiting
    return engine


def count_step(engine: CoreHarness) -> int:
    """What scheduling and committing one step calls; the fake device's work is not counted."""
    plan, num_schedule = counted(lambda: engine.scheduler.schedule(is_step_pending=False))
    assert plan is not None
    result = engine.device.launch(plan.output).result()
    _, num_commit = counted(lambda: engine.scheduler.commit(plan, result))
    return num_schedule + num_commit


@policies
def test_a_step_does_not_look_at_who_waits(policy: str) -> None:
    few, many = make_engine(10, policy), make_engine(10_000, policy)
    counts = [count_step(many) for _ in range(20)]
    assert counts == [count_step(few) for _ in range(20)]
    assert max(counts) < 100 * NUM_RUNNING


@policies
def test_a_step_costs_as_much_for_long_sequences_as_for_short_ones(policy: str) -> None:
    engine = make_engine(0, policy)
    counts = [count_step(engine) for _ in range(200)]
    assert max(counts[-16:]) <= max(counts[:16])


@policies
def test_admission_does_not_look_at_who_waits_behind(policy: str) -> None:
    few, many = make_engine(10, policy), make_engine(10_000, policy)
    for engine in (few, many):
        engine.scheduler.finish(0, 0, FinishReason.STOP, 1)
    assert count_step(many) == count_step(few)
    assert many.scheduler.num_waiting == 9_999


@policies
def test_an_abort_does_not_look_at_the_others(policy: str) -> None:
    few, many = make_engine(10, policy), make_engine(10_000, policy)
    (replies, num_few), (_, num_many) = (counted(partial(engine.scheduler.abort, 7)) for engine in (few, many))
    assert len(replies) == 1
    assert num_many <= num_few + 4


@policies
def test_a_deadline_that_passes_does_not_look_at_the_others(policy: str) -> None:
    few, many = (make_engine(number, policy, deadline_ns=FAR) for number in (10, 10_000))
    counts = []
    for engine in (few, many):
        replies, num_calls = counted(engine.scheduler.drop_late)
        assert replies == []
        engine.scheduler._clock = lambda: FAR + 5
        replies, num_dropping = counted(engine.scheduler.drop_late)
        assert [reply.message.finish for reply in replies] == [FinishReason.DEADLINE] * 6
        counts.append((num_calls, num_dropping))
    assert counts[0][0] == counts[1][0] <= 20
    assert counts[1][1] <= counts[0][1] + 6 * 4
