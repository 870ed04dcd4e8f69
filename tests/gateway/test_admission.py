"""Admission on a clock of its own: what counts, what is told, and that places come back."""

import math
from dataclasses import dataclass

import pytest
from admission_simulation import CountedDecisions, Generation
from hypothesis import given
from hypothesis import strategies as st

from gateway.admission import Admission, Demand, Ticket
from gateway.admission_forecast import Forecast, QueueLimits
from gateway.admission_rates import Pace, Work
from ipc.errors import CapacityError
from ipc.messages import Ready

READY = Ready(1, 0, "n", "d", 100, 100, 4096, 16, 4096, 0, 0, 4, 256, (0.01, 0.001, 0.001))


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


class Door:
    """Admission that is told of demands."""

    def __init__(self, num_sequences: int = 8, num_tokens: int = 100_000, max_wait: float = 60.0) -> None:
        self.clock, self.metrics = Clock(), CountedDecisions()
        self.admission = Admission(QueueLimits(num_sequences, num_tokens, max_wait), self.metrics, self.clock)
        self.admission.start(READY)

    def come(self, num_prompt_tokens: int = 10, max_tokens: int = 20, **fields: float) -> Ticket:
        demand = Demand(100, num_prompt_tokens=num_prompt_tokens, max_tokens=max_tokens, **fields)  # type: ignore[arg-type]
        return self.admission.admit(demand, self.admission.works(demand))

    def told(self, **fields: float) -> int:
        with pytest.raises(CapacityError) as caught:
            self.come(**fields)  # type: ignore[arg-type]
        assert caught.value.retry_after == int(caught.value.retry_after) >= 1
        return int(caught.value.retry_after)


def test_n_counts_n() -> None:
    door = Door(num_sequences=8)
    first = door.come(num_choices=3)
    door.come(num_prompts=2, num_choices=2)
    door.come()
    assert door.admission.num_sequences == 8
    door.told()
    assert door.metrics.refusals == {"queued_reqs": 1}
    door.admission.release(first)
    door.admission.release(first)  # once
    door.come(num_choices=3)
    door.told()


def test_a_full_queue_is_refused_by_the_size_alone() -> None:
    door = Door(num_sequences=2)
    door.admission.check_places(1000)
    door.come(num_choices=2)
    with pytest.raises(CapacityError):
        door.admission.check_places(1000)
    assert door.metrics.refusals == {"queued_reqs": 1}


def test_queued_tokens_are_those_of_prompts_without_a_first_token() -> None:
    door = Door(num_tokens=1000)
    ticket = door.come(900)
    generation = Generation(900, 20)
    ticket.attach(generation, num_prompt_tokens=900, num_choices=1, max_tokens=20)
    door.told(num_prompt_tokens=200)
    assert door.metrics.refusals == {"queued_tokens": 1}
    generation.num_output_tokens = 1
    door.clock.now += 1.0
    door.come(200)


def test_the_wait_and_the_deadline() -> None:
    door = Door(num_sequences=100, max_wait=2.0)
    door.come(1500)  # a millisecond each
    door.told(num_prompt_tokens=1500)
    door.come(100, deadline=10.0)
    door.told(num_prompt_tokens=10, deadline=0.5)
    assert door.metrics.refusals == {"queue_wait": 1, "deadline": 1}


@pytest.mark.parametrize("fields", [{"num_choices": 500}, {"num_prompt_tokens": 4000, "deadline": 0.1}])
def test_who_comes_to_an_idle_engine_is_served(fields: dict[str, float]) -> None:
    Door(num_sequences=8, num_tokens=100, max_wait=0.5).come(**fields)  # type: ignore[arg-type]


def test_absurd_numbers_cost_no_more_than_large_ones() -> None:
    door = Door(num_sequences=8)
    demand = Demand(100, num_prompts=10**6, num_choices=10**6)
    (work,) = door.admission.works(demand)
    assert work.num_sequences == 8
    door.come()
    door.told(num_prompts=10**6, num_choices=10**6)


def test_told_times_pass() -> None:
    """Bookings push later ones back until their time is over, whether anybody comes or not."""
    door = Door(num_sequences=4)
    door.come(max_tokens=1000, num_choices=4, ends_by_itself=False)
    first, *_, last = (door.told(max_tokens=1000, num_choices=4, ends_by_itself=False) for _ in range(5))
    assert last > 3 * first
    door.clock.now += last + 1
    assert door.told(max_tokens=1000, num_choices=4, ends_by_itself=False) <= first + 1


def test_gauges() -> None:
    door = Door()
    ticket = door.come(1000, num_choices=2)
    door.admission.publish()
    assert door.metrics.gauges["num_sequences"] == 2
    assert door.metrics.gauges["num_queued_tokens"] == 1000
    assert door.metrics.gauges["wait_seconds"] == pytest.approx(1.0, rel=0.2)
    door.admission.release(ticket)
    door.admission.publish()
    assert set(door.metrics.gauges.values()) == {0}


def test_what_ended_teaches() -> None:
    door = Door()
    demand = Demand(600, max_tokens=1000)
    for _ in range(300):
        ticket = door.admission.admit(demand, door.admission.works(demand))
        generation = Generation(100, 50, num_output_tokens=50, is_finished=True)
        ticket.attach(generation, num_prompt_tokens=100, num_choices=1, max_tokens=1000)
        assert ticket.totals() == (100, 0, 50)
        door.admission.release(ticket)
    (work,) = door.admission.works(demand)
    assert work.prompt_tokens == pytest.approx(100, rel=0.1)
    assert work.output_tokens == pytest.approx(50, rel=0.1)


works = st.builds(Work, st.integers(1, 5), st.floats(1, 500), st.floats(1, 200))
paces = st.builds(Pace, st.floats(1e-5, 1e-2), st.floats(1e-3, 0.1), st.floats(1e-3, 0.1), st.integers(1, 8))


@given(paces, st.lists(works, max_size=60), st.integers(1, 16), st.integers(100, 5000))
def test_bookings_never_exceed_the_limits(pace: Pace, coming: list[Work], num_places: int, num_tokens: int) -> None:
    """Whoever comes when it was told finds a place, if all before it keep to their times, too."""
    forecast = Forecast(0.0, pace, QueueLimits(num_places, num_tokens, 60.0))
    told = 0.0
    for work in coming:
        time = forecast.when_admitted(work, math.inf)
        assert time >= 0
        told = max(told, time)
        forecast.add(work, told)
        assert len(forecast._places) <= max(num_places, work.num_sequences)
        assert forecast._num_tokens <= max(num_tokens, work.prompt_tokens) + 1e-6


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 4), st.floats(0, 2)), max_size=80))
def test_places_come_back_and_refusals_are_told_in_order(steps: list[tuple[bool, int, float]]) -> None:
    door = Door(num_sequences=6)
    tickets: list[Ticket] = []
    last_told, last_now = 0.0, 0.0
    for ends_one, num_choices, wait in steps:
        door.clock.now += wait
        if ends_one and tickets:
            door.admission.release(tickets.pop(0))
            last_told = 0.0
        try:
            tickets.append(door.come(num_choices=num_choices))
            last_told = 0.0
        except CapacityError as error:
            told = door.clock.now + error.retry_after
            if door.clock.now == last_now:
                assert told >= last_told
            last_told, last_now = told, door.clock.now
        taken = sum(ticket.demand.num_sequences for ticket in tickets)
        assert door.admission.num_sequences == taken <= 6
    for ticket in tickets:
        door.admission.release(ticket)
    assert door.admission.num_sequences == 0
