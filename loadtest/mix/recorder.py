"""Keeps the records of a run and tells locust of each as events, which its statistics, tables and reports are made of.

Knows of locust only what to call.
"""

from collections.abc import Callable
from typing import Any

from loadtest.mix.health import Health
from loadtest.mix.record import Outcome, Record, now

# Request types of events that are no requests. Locust's "Aggregated" row is to be about requests.
TTFT, ITL, TPOT, REFUSED, HUNG_UP = "TTFT", "ITL", "TPOT", "429", "HANGUP"
ASIDE = frozenset((TTFT, ITL, TPOT, REFUSED, HUNG_UP))


class Failure(Exception):
    """An answer that was none, with what the server said; locust prints its ``repr``."""

    def __repr__(self) -> str:
        return str(self)


class Recorder:
    """``fire`` is locust's request event."""

    def __init__(self, fire: Callable[..., None]) -> None:
        self._fire = fire
        self.records: list[Record] = []
        self.health = Health()
        self.others: dict[str, Health] = {}  # of worker processes, by their ids
        self.started = self.stopped = now()

    def begin(self) -> None:
        """A run, with nothing before it."""
        self.records, self.others = [], {}
        self.health.clear()
        self.started = self.stopped = now()

    def end(self) -> None:
        """Of the run; answers that come later do not count for rates."""
        self.stopped = now()

    def note(self, record: Record) -> None:
        """A request has ended."""
        self.records.append(record)
        name = record.name
        match record.outcome:
            case Outcome.ANSWERED:
                self._event("POST", name, record.latency, record)
            case Outcome.FAILED:
                self._event("POST", name, record.latency, record, Failure(record.message))
            case Outcome.REFUSED:
                self._event(REFUSED, name, record.latency, record)
            case Outcome.HUNG_UP:
                self._event(HUNG_UP, name, record.latency, record)
            case Outcome.UNFINISHED:
                return
        if record.outcome is Outcome.FAILED:
            return
        if (ttft := record.ttft) is not None:
            self._event(TTFT, name, ttft, record)
        for gap in record.itl():
            self._event(ITL, name, gap, record)
        if (tpot := record.tpot) is not None:
            self._event(TPOT, name, tpot, record)

    def _event(
        self, request_type: str, name: str, seconds: float, record: Record, failure: Failure | None = None
    ) -> None:
        self._fire(
            request_type=request_type,
            name=name,
            response_time=seconds * 1000,
            response_length=0 if request_type in ASIDE else record.num_bytes,
            exception=failure,
            context={"record": record},
            start_time=record.due,
        )

    # ---- several processes

    def report_to_master(self, client_id: str, data: dict[str, Any]) -> None:
        """Locust's event in a worker: what is new."""
        taken, self.records = self.records, []
        data["loadtest"] = {
            "records": [record.to_wire() for record in taken],
            "health": self.health.take().to_wire(),
        }

    def worker_report(self, client_id: str, data: dict[str, Any]) -> None:
        """Locust's event in the master."""
        if sent := data.get("loadtest"):
            self.records.extend(Record.from_wire(values) for values in sent["records"])
            self.others.setdefault(client_id, Health()).add(Health.from_wire(sent["health"]))

    @property
    def clients(self) -> list[Health]:
        """Of every process that sends requests."""
        return list(self.others.values()) or [self.health]


def keep_aside(stats: Any) -> None:
    """Makes locust's ``RequestStats`` count requests alone as such: in its totals, its charts and its requests/s."""
    log_all = stats.log_request

    def log_request(method: str, name: str, response_time: int, content_length: int) -> None:
        if method in ASIDE:
            stats.entries[(name, method)].log(response_time, content_length)
        else:
            log_all(method, name, response_time, content_length)

    stats.log_request = log_request
