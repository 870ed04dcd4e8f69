"""Attempts to start an engine that the system does not let us start."""

from octavo.start_retries import FIRST_SECONDS, MOST_SECONDS, StartRetries


def test_pauses_grow_to_the_longest_and_end_with_the_patience() -> None:
    retries, now, pauses = StartRetries(60.0), 1000.0, []
    while (pause := retries.fail(now, "no files")[0]) is not None:
        pauses.append(pause)
        now += pause
    assert pauses[:6] == [FIRST_SECONDS, 1.0, 2.0, 4.0, 8.0, MOST_SECONDS]
    assert max(pauses) == MOST_SECONDS
    assert sum(pauses) == 60.0, "the last attempt is at the end"
    assert retries.fail(now + 1, "no files")[0] is None


def test_a_success_begins_anew() -> None:
    retries = StartRetries(1.0)
    for begin in (5.0, 500.0):
        assert retries.fail(begin, "no files") == (FIRST_SECONDS, True)
        assert retries.fail(begin + 0.5, "no files") == (0.5, False)
        assert retries.fail(begin + 1.0, "no files") == (None, False)
        retries.succeed()


def test_only_a_change_of_reason_is_news() -> None:
    retries = StartRetries(1e9)
    found = [retries.fail(float(now), reason)[1] for now, reason in enumerate(["a", "a", "b", "b", "a"])]
    assert found == [True, False, True, False, True]
