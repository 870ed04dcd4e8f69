"""The users, as classes that locust chooses from by weight, name or tag. Importing this patches sockets.

In an open loop every user is a source of arrivals: a Poisson process with its share of ``--rate``. Together they are
one of the whole rate, whichever classes and however many processes there are. A visit then runs beside its user.
"""

import random
from collections.abc import Callable
from typing import Any

import gevent
from gevent.pool import Group
from locust import User, tag, task
from locust.exception import StopTest

from loadtest.mix import behaviours
from loadtest.mix.record import now
from loadtest.mix.run import Run
from loadtest.mix.visit import Visit

Behaviour = Callable[[Visit], None]


class Person(User):
    """Comes, does what its behaviour says, and comes again. ``environment.mix`` is the run, by the locustfile."""

    abstract = True

    def __init__(self, environment: Any) -> None:
        super().__init__(environment)
        self.mix: Run = environment.mix
        try:
            self.world = self.mix.world(self.host)
        except (ValueError, OSError) as error:
            environment.process_exit_code = 1
            raise StopTest(f"cannot test {self.host}: {error}") from error
        self.number = self.mix.next_number(type(self).__name__)
        self.name = f"{self.mix.settings.seed} {type(self).__name__} {self.mix.process} {self.number}"
        self.draw = random.Random(self.name)
        self.rate = self.mix.rate_of_each()
        self.num_visits = 0
        self.due = now()
        self.visits = Group()

    @property
    def api_key(self) -> str | None:
        """Users are dealt to the tenants."""
        keys = self.mix.settings.api_keys
        return keys[self.number % len(keys)] if keys else None

    def on_start(self) -> None:
        """An open loop's first arrival is as random as the others."""
        if self.rate is not None:
            gevent.sleep(self.wait_time())

    def wait_time(self) -> float:
        """Seconds until the next visit. In an open loop from when this one was due: who is late does not shift it."""
        if self.rate is None:
            return self.next_visit(now()).think_time()
        self.due += self.draw.expovariate(self.rate)
        return max(0.0, self.due - now())

    def next_visit(self, due: float) -> Visit:
        """What is said in it depends on its number alone."""
        self.num_visits += 1
        return Visit(self.world, random.Random(f"{self.name} {self.num_visits}"), due, self.api_key)

    def come(self, behaviour: Behaviour, num_at_once: int = 1) -> None:
        """A visit, or several at once. Returns when they are over; in an open loop at once."""
        due = now() if self.rate is None else self.due
        coming = [self.visits.spawn(behaviour, self.next_visit(due)) for _ in range(num_at_once)]
        if self.rate is None:
            for visit in gevent.joinall(coming):
                visit.get()  # raises what went wrong in it, for locust to report

    def on_stop(self) -> None:
        """What an open loop left running gets the time that locust gives to tasks."""
        try:
            if self.rate is not None:
                self.visits.join(timeout=self.environment.stop_timeout)
        finally:  # locust may end the wait
            self.visits.kill()


class ChatUser(Person):
    """Several turns below a shared system prompt."""

    weight = 5

    @tag("chat", "prefix")
    @task
    def chat(self) -> None:
        """A conversation."""
        self.come(behaviours.chat)


class ShortUser(Person):
    """Short questions."""

    weight = 3

    @tag("short")
    @task
    def ask(self) -> None:
        """One of them."""
        self.come(behaviours.ask_shortly)


class LongUser(Person):
    """Long stories, long answers."""

    weight = 1

    @tag("long")
    @task
    def ask(self) -> None:
        """One of them."""
        self.come(behaviours.ask_at_length)


class DocumentUser(Person):
    """A document of thousands of tokens, and questions about it."""

    weight = 1

    @tag("document", "prefix")
    @task
    def ask(self) -> None:
        """Two questions about a new one."""
        self.come(behaviours.ask_about_a_document)


class StructuredUser(Person):
    """Answers that fit a JSON schema."""

    weight = 1

    @tag("structured")
    @task
    def fill_in(self) -> None:
        """A form."""
        self.come(behaviours.fill_in_a_form)


class ChoosyUser(Person):
    """Several answers to one prompt."""

    weight = 1

    @tag("n")
    @task
    def ask(self) -> None:
        """For ``--choices`` of them."""
        self.come(behaviours.ask_for_several)


class ImpatientUser(Person):
    """Hangs up."""

    weight = 1

    @tag("impatient")
    @task
    def ask(self) -> None:
        """And perhaps does not wait."""
        self.come(behaviours.lose_patience)


class FloodingTenant(Person):
    """One tenant that sends bursts, one after the other, without a pause. There is one of it in a mix."""

    fixed_count = 1

    @property
    def api_key(self) -> str | None:
        """Its own, if it has one."""
        return self.mix.settings.flood_key or super().api_key

    def wait_time(self) -> float:
        """None in a closed loop."""
        return 0.0 if self.rate is None else super().wait_time()

    @tag("flood")
    @task
    def flood(self) -> None:
        """A burst."""
        self.come(behaviours.flood, self.mix.settings.flood_burst)
