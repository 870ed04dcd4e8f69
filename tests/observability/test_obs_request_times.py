"""Phases of requests that finished, and of those that did not get far."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from observability.request_times import Phase, RequestTimes


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
