"""Whoever kills engines is found in few crashes, whoever does not is never condemned, and nobody is forgotten."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.quarantine import MOST_STRIKES_IF_KILLED, NUM_GROUPS, Quarantine


def find(num_requests: int, poison: int, *, was_killed: bool, had_output: bool) -> tuple[list[int], int]:
    """Serve until the engine has survived all; the condemned, and how many crashes it took. First all that may run at
    once do; suspects follow when those have had an output. Nobody has one in the step that the poison ends, unless
    they had before the first crash."""
    quarantine = Quarantine()
    alive, condemned, crashes = set(range(num_requests)), [], 0
    with_output = set(alive) if had_output else set()
    while True:
        running = alive - quarantine.held
        if running <= with_output:
            running |= set(quarantine.release())
        if poison in running:
            crashes += 1
            verdict = quarantine.crash(running, with_output.__contains__, was_killed=was_killed)
            with_output = set()
            if verdict.condemned is not None:
                condemned.append(verdict.condemned)
                alive.discard(verdict.condemned)
                quarantine.clear(verdict.condemned)
            continue
        for request_id in running:
            with_output.add(request_id)
            quarantine.clear(request_id)
        if with_output >= alive:
            assert quarantine.is_empty
            return condemned, crashes


@pytest.mark.parametrize("was_killed", [False, True])
@pytest.mark.parametrize("had_output", [False, True])
@given(num_requests=st.integers(1, 64), place=st.integers(0, 63))
def test_the_one_is_found_and_nobody_else(num_requests: int, place: int, was_killed: bool, had_output: bool) -> None:
    poison = place % num_requests
    condemned, crashes = find(num_requests, poison, was_killed=was_killed, had_output=had_output)
    assert condemned == [poison]
    assert crashes <= 4


@given(st.lists(st.sets(st.integers(0, 30), max_size=8), max_size=6), st.booleans())
def test_crashes_that_come_from_outside_condemn_nobody(steps: list[set[int]], had_output: bool) -> None:
    """As long as everybody has an output between two of them."""
    quarantine = Quarantine()
    for step in steps:
        verdict = quarantine.crash(step, lambda _: had_output, was_killed=False)
        assert verdict.condemned is None
        assert not verdict.is_narrowed
        back = set(step) - quarantine.held
        while group := quarantine.release():
            assert not back & set(group)
            back |= set(group)
            for request_id in group:
                quarantine.clear(request_id)
        assert back == step
        for request_id in step:
            quarantine.clear(request_id)
        assert quarantine.is_empty


def test_requests_that_had_run_well_come_back_at_once_and_others_one_by_one() -> None:
    quarantine = Quarantine()
    quarantine.crash({1, 2, 3}, lambda _: True, was_killed=False)
    assert quarantine.held == frozenset()
    quarantine.crash({1, 2, 3, 4, 5}, lambda request_id: request_id < 4, was_killed=False)
    assert quarantine.held == {4, 5}
    assert quarantine.release() == [4]
    assert quarantine.release() == [], "4 has not had an output"
    quarantine.clear(4)
    assert quarantine.release() == [5]


def test_many_suspects_come_back_in_groups() -> None:
    quarantine = Quarantine()
    quarantine.crash(range(64), lambda _: False, was_killed=False)
    assert len(quarantine.release()) == 64 // NUM_GROUPS


def test_a_request_that_nobody_wants_any_more_holds_nobody_up() -> None:
    quarantine = Quarantine()
    quarantine.crash({1, 2}, lambda _: False, was_killed=False)
    quarantine.release()
    quarantine.clear(2)
    quarantine.clear(1)
    assert quarantine.release() == []
    assert quarantine.is_empty


def test_a_second_crash_while_others_are_held_keeps_them_held() -> None:
    quarantine = Quarantine()
    quarantine.crash({1, 2, 3}, lambda _: False, was_killed=False)
    assert quarantine.release() == [1]
    verdict = quarantine.crash({1}, lambda _: False, was_killed=False)
    assert (verdict.condemned, verdict.is_narrowed) == (1, True)
    assert quarantine.held == {2, 3}


def test_one_that_is_killed_from_outside_has_another_chance() -> None:
    quarantine = Quarantine()
    for strike in range(1, MOST_STRIKES_IF_KILLED):
        verdict = quarantine.crash({1}, lambda _: False, was_killed=True)
        assert (verdict.condemned, verdict.is_narrowed) == (None, strike > 1)
        assert quarantine.release() == [1]
    assert quarantine.crash({1}, lambda _: False, was_killed=True).condemned == 1
