"""Promises kept: one burst of twenty times what may be in flight, of clients who come when they are told to."""

import random
from collections.abc import Callable

import pytest
from admission_simulation import Client, Costs, Simulation, same, varied

from gateway.admission_forecast import QueueLimits

Make = Callable[[random.Random], Client]
KINDS: dict[str, Make] = {
    "alike": same(128, 64),
    "varied": varied(128, 64, 256),
    "long outputs": varied(50, 200, 1000),
    "long prompts": varied(1000, 20, 40),
    "both long": varied(2000, 100, 400),
}


def burst(
    make: Make,
    num_places: int,
    num_slots: int,
    *,
    is_warm: bool = True,
    is_timed: bool = True,
    costs: Costs | None = None,
) -> Simulation:
    """After some load, or none, 20 × ``num_places`` requests within half a second, and nobody else ever."""
    rng = random.Random(num_places)
    simulation = Simulation(QueueLimits(num_places, 262_144, 60.0), num_slots, costs, is_timed=is_timed)
    if is_warm:
        for _ in range(min(num_places, 64)):
            simulation.send(0.0, make(rng))
        simulation.run(lambda: False)
        simulation.outcomes.clear()
        simulation.told.clear()
    num_clients = 20 * num_places
    for index in range(num_clients):
        simulation.send(simulation.now + 0.5 * index / num_clients, make(rng))
    simulation.run(lambda: False)
    return simulation


@pytest.mark.parametrize(("num_places", "num_slots"), [(256, 128), (64, 32), (16, 16), (8, 128)])
@pytest.mark.parametrize("kind", KINDS)
def test_who_comes_when_told_is_admitted(kind: str, num_places: int, num_slots: int) -> None:
    simulation = burst(KINDS[kind], num_places, num_slots)
    assert simulation.admitted_share(1) >= 0.9
    # Everybody was served, by an engine that was busy most of the time: caution does not cost much.
    assert sum(admitted for _, admitted in simulation.outcomes) == 20 * num_places
    assert simulation.engine.busy > 0.5 * simulation.now


def test_an_engine_that_nobody_has_timed_or_used() -> None:
    """A guess that is too slow makes clients wait too long; it breaks no promise."""
    simulation = burst(KINDS["alike"], 64, 32, is_warm=False, is_timed=False)
    assert simulation.admitted_share(1) >= 0.9


def test_a_fast_engine_that_had_a_slow_start() -> None:
    """Timed at 7 ms a step, it takes 3: what is learned brings the told times down."""
    timed = burst(KINDS["alike"], 64, 32, is_timed=False, costs=Costs(0.003, 0.0001, 0.0001))
    assert timed.admission.speed.factors[1] < 0.7
    assert timed.admitted_share(1) >= 0.9
    assert max(seconds for _, seconds in timed.told) < 2 * timed.now


def test_later_refusals_are_told_later_times() -> None:
    simulation = burst(KINDS["alike"], 64, 32)
    coming = [when + seconds for when, seconds in simulation.told]
    # Up to the rounding to whole seconds.
    assert all(later >= earlier - 1 for earlier, later in zip(coming, coming[1:], strict=False))
    assert coming[-1] > coming[0] + 30


def test_below_capacity_nobody_is_refused() -> None:
    simulation = Simulation(QueueLimits(64, 262_144, 60.0), 32)
    rng = random.Random(1)
    for index in range(500):
        simulation.send(index * 0.2, KINDS["varied"](rng))
    simulation.run(lambda: False)
    assert simulation.outcomes == [(0, True)] * 500
    assert simulation.metrics.refusals == {}
