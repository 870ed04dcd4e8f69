"""What a user does with an answer, a refusal and a failure; and what the users of the mix ask for."""

import random
from collections.abc import Callable
from threading import Event

import pytest
from loadtest_fake import Fake, serving

from loadtest.dataset import Dataset, Sizes
from loadtest.mix import behaviours
from loadtest.mix.connections import Connections
from loadtest.mix.record import Outcome, Record, now
from loadtest.mix.settings import Settings
from loadtest.mix.visit import Visit, World

MESSAGES = [{"role": "user", "content": "Hello"}]


def visiting(fake: Fake, behaviour: Callable[[Visit], object], **settings: object) -> list[Record]:
    """The records of one visit."""
    records: list[Record] = []
    connections = Connections(fake.url)
    chosen = Settings(think_time=0.0, **settings)  # type: ignore[arg-type]
    dataset = Dataset(Sizes(document_tokens=300))
    world = World(chosen, dataset, connections, "m", records.append, Event())
    behaviour(Visit(world, random.Random(1), now(), "key"))
    connections.close()
    return records


def test_a_refused_user_comes_again_when_told_to() -> None:
    with serving(num_refusals=2, retry_after="0.2") as fake:
        first, second, third = visiting(fake, lambda visit: visit.say("x", MESSAGES, 8))
        assert [one.outcome for one in (first, second, third)] == [Outcome.REFUSED, Outcome.REFUSED, Outcome.ANSWERED]
        gaps = [late - early for early, late in zip(fake.arrivals, fake.arrivals[1:], strict=False)]
        assert all(0.2 <= gap < 1.0 for gap in gaps)
        assert first.arrived == second.arrived == third.arrived == first.due
        assert third.due == pytest.approx(second.ended + 0.2)
        assert third.ttft is not None
        assert third.ttft_of_user is not None
        assert third.ttft_of_user > third.ttft + 0.4  # for goodput they have waited all the time


def test_who_is_told_too_late_a_time_does_not_come() -> None:
    with serving(num_refusals=5, retry_after="100") as fake:
        records = visiting(fake, lambda visit: visit.say("x", MESSAGES, 8), longest_retry=60.0)
        assert [one.outcome for one in records] == [Outcome.REFUSED]


def test_a_failure_ends_a_conversation() -> None:
    with serving(status=500) as fake:
        records = visiting(fake, behaviours.chat)
        assert [one.outcome for one in records] == [Outcome.FAILED]


def test_a_conversation_grows_by_the_servers_answers() -> None:
    with serving(num_tokens=2) as fake:
        records = visiting(fake, behaviours.chat, body={"top_k": 1, "temperature": 0})
        assert [one.name for one in records[:2]] == ["chat, first turn", "chat, later turns"]
        assert len(records) == len(fake.bodies) >= 2
        for number, body in enumerate(fake.bodies):
            roles = [message["role"] for message in body["messages"]]
            assert roles == ["system", "user", *["assistant", "user"] * number]
        assert fake.bodies[1]["messages"][2]["content"] == "word0 word1 "
        assert fake.bodies[1]["messages"][:2] == fake.bodies[0]["messages"]
        first = fake.bodies[0]
        assert (first["model"], first["stream"], first["top_k"], first["temperature"]) == ("m", True, 1, 0)
        assert first["stream_options"] == {"include_usage": True}


@pytest.mark.parametrize(
    ("behaviour", "names"),
    [
        (behaviours.ask_shortly, ["short"]),
        (behaviours.ask_at_length, ["long"]),
        (behaviours.ask_about_a_document, ["document, first turn", "document, later turns"]),
        (behaviours.fill_in_a_form, ["structured"]),
        (behaviours.ask_for_several, ["n = 3"]),
        (behaviours.flood, ["flood"]),
    ],
)
def test_what_the_others_ask(behaviour: Callable[[Visit], None], names: list[str]) -> None:
    with serving(num_tokens=2) as fake:
        records = visiting(fake, behaviour)
        assert [(one.name, one.outcome) for one in records] == [(name, Outcome.ANSWERED) for name in names]
        assert fake.bodies[0].get("n", 1) == records[0].num_choices == (3 if "n" in names[0].split() else 1)
        repeated: list[dict[str, object]] = [{**body} for body in fake.bodies]
        fake.bodies.clear()
        visiting(fake, behaviour)
        assert fake.bodies == repeated  # the same draws, the same requests


@pytest.mark.parametrize(
    ("form", "said"),
    [("not JSON", "is no JSON"), ('{"subject": "travel"}', "does not fit"), ("[]", "does not fit")],
)
def test_structured_output_is_looked_at(form: str, said: str) -> None:
    with serving(form=form) as fake:
        (record,) = visiting(fake, behaviours.fill_in_a_form)
        assert record.outcome is Outcome.FAILED
        assert said in record.message


def test_the_impatient_hang_up() -> None:
    with serving(ttft=0.05, itl=0.05, num_tokens=200) as fake:
        (record,) = visiting(fake, behaviours.lose_patience, patience=0.2)
        assert record.outcome is Outcome.HUNG_UP


def test_nothing_is_asked_after_the_end() -> None:
    with serving() as fake:
        assert visiting(fake, end_and_ask) == []


def end_and_ask(visit: Visit) -> None:
    visit.world.is_over.set()
    behaviours.chat(visit)
