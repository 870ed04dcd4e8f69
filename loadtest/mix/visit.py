"""One arrival of one user: what they ask, one request after the other, and how they take a refusal."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from threading import Event
from typing import Any

from loadtest.dataset import Dataset
from loadtest.mix.chat import Patience, ask
from loadtest.mix.connections import Connections
from loadtest.mix.record import Outcome, Record, now
from loadtest.mix.settings import Settings

Message = dict[str, str]
PAUSE_AFTER_FAILURE = 0.5  # seconds: a server that is down is not to be asked as fast as this machine can


@dataclass(frozen=True, slots=True)
class World:
    """What all visits share. ``note`` is told of every request that has ended; ``is_over`` is set when the run is."""

    settings: Settings
    dataset: Dataset
    connections: Connections
    model: str
    note: Callable[[Record], None]
    is_over: Event


class Visit:
    """``draw`` is its own, so that what it says does not depend on what others do at the same time."""

    def __init__(self, world: World, draw: random.Random, due: float, api_key: str | None) -> None:
        self.world, self.draw, self.due, self.api_key = world, draw, due, api_key

    @property
    def is_over(self) -> bool:
        """Nothing more is to be asked."""
        return self.world.is_over.is_set()

    def think(self) -> None:
        """Reads the answer, and then wants the next one."""
        self.world.is_over.wait(self.think_time())
        self.due = now()

    def think_time(self) -> float:
        """Lognormal: few think long."""
        median = self.world.settings.think_time
        return self.draw.lognormvariate(math.log(median), 0.5) if median > 0 else 0.0

    def say(
        self,
        name: str,
        messages: list[Message],
        max_tokens: int,
        *,
        patience: Patience | None = None,
        check: Callable[[str], str] | None = None,
        **more: Any,
    ) -> list[str] | None:
        """The texts of all choices; None if there is no answer. A refused user comes again when they are told to.

        ``check`` says what is wrong with a text that the model ended itself. ``more`` goes into the body.
        """
        settings = self.world.settings
        body = {
            "model": self.world.model,
            "messages": messages,
            "max_tokens": max_tokens,
            "temperature": settings.temperature,
            "seed": self.draw.randrange(2**31),
            "stream": True,
            "stream_options": {"include_usage": True},
            **more,
            **settings.body,
        }
        arrived = due = self.due
        num_refused = 0
        while not self.is_over:
            record = Record(name, arrived, due, num_choices=body.get("n", 1))
            try:
                texts = ask(
                    self.world.connections, body, record, self.api_key, settings.timeout, patience or Patience()
                )
                if check is not None:
                    _apply(check, texts, record)
            finally:
                self.world.note(record)
            if record.outcome is Outcome.ANSWERED:
                return texts
            if record.outcome is not Outcome.REFUSED:
                if record.outcome is Outcome.FAILED:
                    self.world.is_over.wait(PAUSE_AFTER_FAILURE)
                return None
            num_refused += 1
            told = record.retry_after
            wait = min(2.0 ** (num_refused - 1), settings.longest_retry) if told is None else told
            if wait > settings.longest_retry:
                return None
            due = record.ended + wait
            self.world.is_over.wait(wait)
        return None


def _apply(check: Callable[[str], str], texts: list[str], record: Record) -> None:
    if record.outcome is not Outcome.ANSWERED or record.message != "stop":
        return
    if wrong := next((wrong for text in texts if (wrong := check(text))), ""):
        record.outcome, record.message = Outcome.FAILED, wrong
