"""A run: what its users share, when it begins and ends, and what is said about it then. Imports nothing of locust.

One for each process. In several processes the master has the records of all, and the others send theirs.
"""

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Event

from loadtest.dataset import Dataset
from loadtest.mix import report
from loadtest.mix.chat import first_model
from loadtest.mix.connections import Connections
from loadtest.mix.record import Outcome, now
from loadtest.mix.recorder import Recorder
from loadtest.mix.settings import Settings
from loadtest.mix.summary import Summary, lines, summarize
from loadtest.mix.thresholds import broken
from loadtest.mix.visit import World

PROGRESS_SECONDS = 10
logger = logging.getLogger("loadtest")


class Run:
    """``begin`` may come again, with other settings: behind locust's web page there are several runs."""

    def __init__(self, settings: Settings, dataset: Dataset, recorder: Recorder, folder: str | None) -> None:
        self.settings, self.dataset, self.recorder = settings, dataset, recorder
        self.process = 0  # the number of a worker; locust tells it when the run begins
        self.num_users = 1  # in all processes: they share the rate
        self.is_over = Event()
        self.finish_workers: Callable[[float], None] | None = None  # of a master
        self._folder = folder
        self._worlds: dict[str, World] = {}
        self._numbers: Counter[str] = Counter()
        self._summary: Summary | None = None

    # ---- for the users

    def world(self, host: str | None) -> World:
        """The server, and the model on it. Raises ValueError or OSError when there is none."""
        if not host:
            raise ValueError("name a server with --host or LOCUST_HOST")
        if host not in self._worlds:
            connections, keys = Connections(host), self.settings.api_keys
            model = self.settings.model or first_model(connections, keys[0] if keys else None, self.settings.timeout)
            # Another user may have asked meanwhile.
            self._worlds.setdefault(
                host, World(self.settings, self.dataset, connections, model, self.recorder.note, self.is_over)
            )
        return self._worlds[host]

    def next_number(self, kind: str) -> int:
        """Users of a kind are numbered, so that each says what its number says."""
        self._numbers[kind] += 1
        return self._numbers[kind]

    def rate_of_each(self) -> float | None:
        """Arrivals a second of one user; None in a closed loop."""
        return None if self.settings.rate is None else self.settings.rate / max(1, self.num_users)

    # ---- locust's events

    def begin(self, settings: Settings, dataset: Dataset, num_users: int, process: int) -> None:
        """Before the first user comes."""
        self.settings, self.dataset, self.num_users, self.process = settings, dataset, num_users, process
        self.is_over.clear()
        self._worlds.clear()
        self._numbers.clear()
        self._summary = None
        self.recorder.begin()

    def end(self) -> None:
        """No user asks anything more."""
        self.is_over.set()
        self.recorder.end()

    def say_progress(self) -> None:
        """A line every few seconds, until the run is over."""
        while not self.is_over.wait(PROGRESS_SECONDS):
            records = self.recorder.records
            counts = Counter(record.outcome for record in records)
            logger.info(
                f"{now() - self.recorder.started:.0f} s: {counts[Outcome.ANSWERED]} answered, "
                f"{counts[Outcome.FAILED]} failed, {counts[Outcome.REFUSED]} refused"
            )

    def summarize(self, host: str | None, bounds: Mapping[str, float | None]) -> Summary:
        """When all is over; writes the report if there is to be one."""
        kept = self.recorder
        arrivals = f"{self.num_users} users"
        if self.settings.rate is None:
            arrivals += " in a closed loop"
        else:
            arrivals += f", {self.settings.rate:g} arrivals/s in an open loop"
        span = (kept.started, kept.stopped)
        found = summarize(host or "?", self._model(host), arrivals, kept.records, kept.clients, span, self.settings)
        wrong = list(broken(found, bounds))
        if all(record.outcome is Outcome.UNFINISHED for record in kept.records):
            wrong.append("no request came to an end")
        self._summary = found.with_broken(tuple(wrong))
        if self._folder:
            report.write(Path(self._folder), self._summary, kept.records, kept.clients)
        return self._summary

    def _model(self, host: str | None) -> str:
        """A master has asked for none so far."""
        try:
            return self.world(host).model
        except (ValueError, OSError):
            return self.settings.model or "?"

    def lines(self) -> list[str]:
        """What the terminal is told at the end."""
        if self._summary is None:
            return []
        told = lines(self._summary)
        if self._folder:
            told.append(f"report       {Path(self._folder) / report.PAGE}")
        return told
