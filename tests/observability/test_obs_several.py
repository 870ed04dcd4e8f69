"""The figures of several gateway processes as one: whatever is counted in whichever, the text is the same."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from observability.metrics import Metrics

happenings = st.lists(
    st.tuples(
        st.sampled_from(["first_token", "http", "refusal", "lag"]),
        st.integers(0, 2),
        st.sampled_from([0.0, 0.25, 0.5, 64.0]),
    ),
    max_size=30,
)


def happen(metrics: Metrics, what: str, seconds: float) -> None:
    match what:
        case "first_token":
            metrics.observe_first_token(seconds)
        case "http":
            metrics.observe_http("/v1/models", "GET", 200, seconds)
        case "refusal":
            metrics.count_refusal("queue_wait")
        case "lag":
            metrics.observe_event_loop_lag(seconds)


def text_of(metrics: Metrics, *others: Metrics) -> list[str]:
    text = metrics.render([other.cell_values() for other in others]).decode()
    return [line for line in text.splitlines() if not line.startswith(("#", "process_"))]


@settings(deadline=None)
@given(happenings, st.integers(0, 2))
def test_whoever_counts_it(happened: list[tuple[str, int, float]], dead: int) -> None:
    alone, parts = Metrics(model_name="m"), [Metrics(model_name="m") for _ in range(3)]
    for what, index, seconds in happened:
        happen(alone, what, seconds)
        happen(parts[index], what, seconds)
    own, *others = parts
    assert text_of(own, *others) == text_of(alone)
    # One that has ended is counted from then on by whoever renders.
    if dead:
        ended = others.pop(dead - 1)
        own.add(ended.cell_values())
        assert text_of(own, *others) == text_of(alone)


def test_gauges_are_added_up_and_end_with_their_process() -> None:
    own, other = Metrics(model_name="m"), Metrics(model_name="m")
    for metrics in (own, other):
        metrics.set_gateway(num_connections=2, num_buffered_bytes=10, cpu_seconds=1.5, memory_bytes=100)
    both = text_of(own, other)
    assert 'octavo:gateway_connections{engine="0",model_name="m"} 4.0' in both
    assert 'octavo:gateway_cpu_seconds_total{engine="0",model_name="m"} 3.0' in both
    own.add(other.cell_values())
    left = text_of(own)
    assert 'octavo:gateway_connections{engine="0",model_name="m"} 2.0' in left
    assert 'octavo:gateway_cpu_seconds_total{engine="0",model_name="m"} 3.0' in left


def test_what_is_in_no_table_is_an_error() -> None:
    metrics = Metrics(model_name="m")
    with pytest.raises(KeyError):
        metrics.add([("weather", (), (1.0,))])
    with pytest.raises(ValueError, match="zip"):
        metrics.add([("time_to_first_token_seconds", (), (1.0, 2.0))])
