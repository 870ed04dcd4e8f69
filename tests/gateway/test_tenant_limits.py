import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.tenant_limits import RequestSlots, TokenBucket
from gateway.tenants import duration


@given(
    st.integers(1, 100_000),
    st.lists(st.tuples(st.floats(0, 200_000), st.floats(0, 30)), max_size=60),
)
def test_a_bucket_gives_no_more_than_its_rate(tokens_per_minute: int, steps: list[tuple[float, float]]) -> None:
    bucket, now, taken = TokenBucket(tokens_per_minute, 0.0), 0.0, 0.0
    for amount, wait in steps:
        now += wait
        if bucket.seconds_until(amount, now) <= 0:
            amount = min(amount, bucket.capacity)
            bucket.take(amount, now)
            taken += amount
        assert 0 - 1e-6 <= bucket.level(now) <= bucket.capacity
    assert taken <= tokens_per_minute * (1 + now / 60) * (1 + 1e-9) + 1e-6


@given(st.integers(100, 100_000), st.lists(st.floats(1, 50_000), min_size=1, max_size=40))
def test_who_comes_when_told_finds_the_tokens(tokens_per_minute: int, amounts: list[float]) -> None:
    """All of a burst are refused at an empty bucket; each comes when it was told to."""
    bucket = TokenBucket(tokens_per_minute, 0.0)
    bucket.take(bucket.capacity, 0.0)
    told = [(bucket.refuse(amount, 0.0), amount) for amount in amounts]
    assert [seconds for seconds, _ in told] == sorted(seconds for seconds, _ in told)
    for seconds, amount in told:
        assert bucket.seconds_until(amount, float(seconds)) <= 1e-6
        bucket.take(min(amount, bucket.capacity), float(seconds))


def test_an_estimate_is_settled() -> None:
    bucket = TokenBucket(600, 0.0)
    bucket.take(500, 0.0)
    bucket.take(100 - 500, 0.0)
    assert bucket.level(0.0) == 500
    bucket.take(700, 0.0)  # it took more than was thought
    assert bucket.seconds_until(100, 0.0) == pytest.approx(30)


def test_more_than_a_minute_has_waits_for_a_full_bucket() -> None:
    bucket = TokenBucket(600, 0.0)
    assert bucket.seconds_until(10_000, 0.0) == 0
    bucket.take(10_000, 0.0)
    assert bucket.seconds_until(10_000, 0.0) == pytest.approx(1000)


@given(st.integers(1, 5), st.floats(0.1, 20), st.integers(1, 60))
def test_slots_tell_times_at_which_one_is_free(num_slots: int, seconds: float, num_refused: int) -> None:
    """Requests that all take the same time: whoever comes when told finds a slot."""
    slots = RequestSlots(num_slots)
    slots.usual_seconds = seconds
    ends = [seconds] * num_slots
    for _ in range(num_slots):
        slots.take()
    told = [slots.refuse(0.0) for _ in range(num_refused)]
    assert told == sorted(told)
    # One that is told k durations finds a slot unless those before it were held up by the rounding: at most a round.
    assert told[-1] >= seconds * num_refused / num_slots
    assert told[-1] <= seconds * num_refused / num_slots + 1
    for _ in ends:
        slots.give_back(seconds)
    assert not slots.is_full


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0ms"), (0.12, "120ms"), (1.5, "1.5s"), (59, "59s"), (60, "1m0s"), (361.9, "6m1s")]
)
def test_durations_are_openais(seconds: float, text: str) -> None:
    assert duration(seconds) == text
