"""Phases of requests that finished, and of those that did not get far."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from observability.request_times import Phase, RequestTimes, Stopwatch


def test_a_whole_life() -> None:
    times = RequestTimes(10, 20, 50, 90, 130, 140)
    assert times.phases() == (Phase("queue", 20, 50), Phase("prefill", 50, 90), Phase("decode", 90, 130))
    assert times.seconds == pytest.approx(130e-9)


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        (RequestTimes(10, end_ns=40), ()),
        (RequestTimes(10, 20, end_ns=40), (Phase("queue", 20, 40),)),
        (RequestTimes(10, 20, 30, end_ns=40), (Phase("queue", 20, 30), Phase("prefill", 30, 40))),
    ],
)
def test_the_end_cuts_a_phase_short(times: RequestTimes, expected: tuple[Phase, ...]) -> None:
    assert times.phases() == expected


def test_no_phases_before_the_end() -> None:
    with pytest.raises(ValueError, match="not ended"):
        RequestTimes(10).phases()
    with pytest.raises(ValueError, match="not ended"):
        _ = RequestTimes(10).seconds


moments = st.none() | st.integers(0, 1000)


@given(st.integers(0, 1000), moments, moments, moments, moments, st.integers(0, 1000))
def test_no_phase_is_negative_whatever_the_clocks_say(
    arrival: int, queued: int | None, admitted: int | None, first: int | None, last: int | None, end: int
) -> None:
    times = RequestTimes(arrival, queued, admitted, first, last, end)
    assert all(phase.seconds >= 0 for phase in times.phases())
    assert times.seconds >= 0


def test_waits_are_the_queue_by_reason() -> None:
    times = RequestTimes(0)
    times.queue(1_000_000_000)
    times.queue(9_000_000_000)
    times.wait(2_000_000_000, "kv_blocks")
    times.wait(5_000_000_000, "grammar")
    times.wait(6_000_000_000, "kv_blocks")
    times.admit(10_000_000_000)
    times.admit(11_000_000_000)
    times.wait(12_000_000_000, "kv_blocks")
    assert times.waits() == {}
    times.end_ns = 20_000_000_000
    assert times.waits() == {"policy": 1.0, "kv_blocks": 7.0, "grammar": 1.0}
    assert times.phases()[0].seconds == 9.0
    assert times.inference_seconds == 10.0


def test_a_wait_that_was_given_up_lasts_until_the_end() -> None:
    times = RequestTimes(0, queued_ns=1_000_000_000)
    times.wait(1_000_000_000, "sequence_slots")
    times.end_ns = 3_000_000_000
    assert times.waits() == {"sequence_slots": 2.0}
    assert times.inference_seconds is None


def test_no_wait_at_all_is_one_of_nothing() -> None:
    assert RequestTimes(0, 5, 5, end_ns=9).waits() == {"policy": 0.0}
    assert RequestTimes(0, end_ns=9).waits() == {}


reasons = st.sampled_from(["policy", "kv_blocks", "grammar"])


@given(st.lists(st.tuples(st.integers(0, 1000), reasons)), st.integers(0, 1000), moments, st.integers(0, 1000))
def test_waits_add_up_to_the_queue_whatever_the_clocks_say(
    waits: list[tuple[int, str]], queued: int, admitted: int | None, end: int
) -> None:
    times = RequestTimes(0, queued_ns=queued)
    for time_ns, reason in waits:
        times.wait(time_ns, reason)
    times.admitted_ns, times.end_ns = admitted, end
    found = times.waits()
    assert all(seconds >= 0 for seconds in found.values())
    in_order = not waits or max(time_ns for time_ns, _ in waits) <= (end if admitted is None else admitted)
    if in_order:
        assert sum(found.values()) == pytest.approx(times.phases()[0].seconds)


def test_a_stopwatch_knows_when_its_block_was() -> None:
    with Stopwatch() as watch:
        assert watch.start_ns > 0
    assert watch.end_ns >= watch.start_ns
