"""Hung: no progress for too long, whatever the beats say; never while the observer itself was held up."""

from ipc.messages import Beat
from octavo.liveness import Liveness
from octavo.restart_limit import MOST_IN_VAIN, WINDOW_SECONDS, RestartLimit


def beat(loops: int, layers: int = 0, step_seconds: float = 0.0) -> Beat:
    return Beat(1, loops, layers, 0, int(step_seconds * 1e9))


def test_loops_or_layers_that_move_are_progress() -> None:
    liveness = Liveness(10, now=0)
    for second in range(30):
        liveness.observe(beat(second // 2, second), second)
        assert not liveness.is_hung(second + 9)


def test_beats_that_say_the_same_are_none() -> None:
    liveness = Liveness(10, now=0)
    for second in range(11):
        liveness.observe(beat(5, 7), second)
    assert not liveness.is_hung(10)
    assert liveness.is_hung(10.1)


def test_no_beats_at_all() -> None:
    liveness = Liveness(10, now=3)
    liveness.observe(None, 12)
    assert not liveness.is_hung(13)
    assert liveness.is_hung(13.1)


def test_a_long_step_has_five_times_as_long_as_expected() -> None:
    liveness = Liveness(10, now=0)
    liveness.observe(beat(1, 1, step_seconds=4), 0)
    assert not liveness.is_hung(20)
    assert liveness.is_hung(20.1)


def test_an_observer_that_came_late_waits_again() -> None:
    liveness = Liveness(10, now=0)
    liveness.observe(beat(1), 0)
    liveness.excuse(100)
    assert not liveness.is_hung(110)
    assert liveness.is_hung(110.1)


def test_restarts_are_counted_in_a_window() -> None:
    limit = RestartLimit(3)
    assert [limit.allows(now, counts=True, made_progress=True) for now in (0, 1, 2, 3)] == [True, True, True, False]
    limit = RestartLimit(3)
    times = [0, 1, 2, WINDOW_SECONDS, WINDOW_SECONDS + 0.5]
    assert [limit.allows(now, counts=True, made_progress=True) for now in times] == [True, True, True, True, False]


def test_crashes_that_search_do_not_count() -> None:
    limit = RestartLimit(1)
    assert limit.allows(0, counts=True, made_progress=True)
    assert all(limit.allows(now, counts=False, made_progress=True) for now in range(20))
    assert not limit.allows(21, counts=True, made_progress=True)


def test_engines_that_never_serve_are_given_up() -> None:
    limit = RestartLimit(100)
    assert [limit.allows(now, counts=False, made_progress=False) for now in range(MOST_IN_VAIN)] == [True, True, False]
    limit = RestartLimit(100)
    for now in range(10):
        assert limit.allows(now, counts=False, made_progress=now % 2 == 1)


def test_none_at_all() -> None:
    assert not RestartLimit(0).allows(0, counts=False, made_progress=True)
