"""One gateway process's requests, in the process that has the engine's client and the desk.

To that gateway this is the engine: its ``Add`` becomes a stream here, whose outputs go back as they come. So an engine
that dies is the business of this side alone, and so is what a gateway that dies leaves behind.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from gateway.admission import Demand
from gateway.desk import FrontDesk
from gateway.engine_client import EngineClient
from gateway.flight import Flight
from gateway.notifier import Notifier
from gateway.visit import LocalVisit
from ipc.desk import Answer, Check, Enter, Entered, Leave, ToDesk, ToGatewayProcess, TurnedAway
from ipc.errors import CapacityError, EngineError
from ipc.messages import Abort, Accepted, Add, Failed, Finish, Output, Outputs, Refused

ID_BYTES = 4  # of a token

Send = Callable[[ToGatewayProcess], None]


class RelayedStream:
    """One request: what the client of the engine has for it goes to the gateway that asked."""

    def __init__(self, relay: "Relay", flight: Flight) -> None:
        self.flight, self.notifier = flight, relay.notifier
        self._relay = relay

    def accept(self) -> None:
        """The engine has queued it."""
        self._relay.send(Accepted(self.flight.request_id))

    def push(self, output: Output, time_ns: int) -> None:
        """Sent with all others of the engine's message."""
        self._relay.queue(self.flight.take(output), time_ns)
        if self.flight.is_finished:
            self._relay.end_stream(self)

    def fail(self, message: Failed | Refused) -> None:
        """After what is queued."""
        self._relay.flush()
        self._relay.send(message)
        self._relay.end_stream(self)


@dataclass(frozen=True, slots=True)
class FlightProgress:
    """How far a flight is, for whoever predicts when it ends (``gateway.admission.Progress``)."""

    flight: Flight

    @property
    def num_output_tokens(self) -> int:
        """Over all choices, up to their stop strings."""
        return sum(
            len(choice.packed) // ID_BYTES if choice.end is None else choice.end
            for choice in self.flight.choices.values()
        )

    @property
    def num_cached_tokens(self) -> int:
        """Of the prompt."""
        return max((choice.num_cached_tokens for choice in self.flight.choices.values()), default=0)

    @property
    def is_finished(self) -> bool:
        """Nothing more comes."""
        return self.flight.is_finished


@dataclass(slots=True)
class Relay:
    """``send``: to the gateway process. ``numbers``: of visits, unique in this process."""

    client: EngineClient
    desk: FrontDesk
    send: Send
    numbers: Iterator[int]
    notifier: Notifier = field(default_factory=Notifier)
    _streams: dict[int, RelayedStream] = field(default_factory=dict)
    _visits: dict[int, LocalVisit] = field(default_factory=dict)
    _outputs: list[Output] = field(default_factory=list)
    _time_ns: int = 0

    def __post_init__(self) -> None:
        self.notifier.listener = self.flush

    @property
    def is_idle(self) -> bool:
        """Nobody is served there."""
        return not self._streams and not self._visits

    def receive(self, message: ToDesk) -> None:
        """What the gateway wants of the engine or of the desk; the rest is nothing to this."""
        match message:
            case Add():
                self._add(message)
            case Finish():
                if (stream := self._streams.get(message.request_id)) is not None:
                    self.client.finish(stream, message.choice, message.num_tokens)
            case Abort():
                if (stream := self._streams.pop(message.request_id, None)) is not None:
                    self.client.forget(stream)
                # What it still costs is counted here: the gateway need not wait for it.
                self.send(Failed(message.request_id, -1, "aborted", "the gateway does not want it any more"))
            case Check() | Enter():
                self._decide(message)
            case Leave():
                if (visit := self._visits.pop(message.visit, None)) is not None:
                    visit.end()

    def end(self) -> None:
        """The gateway is gone: nobody wants any of it."""
        self.send = _to_nobody
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            self.client.forget(stream)
        visits, self._visits = self._visits, {}
        for visit in visits.values():
            visit.end()

    # ---- requests

    def _add(self, add: Add) -> None:
        visit = self._visits.get(add.visit)
        flight = Flight(add, None if visit is None else visit.bill)
        if visit is not None:
            visit.attach(
                FlightProgress(flight),
                num_prompt_tokens=len(add.prompt_ids) // ID_BYTES,
                num_choices=len(add.choices),
                max_tokens=add.params.max_tokens,
            )
        stream = self._streams[add.request_id] = RelayedStream(self, flight)
        try:
            self.client.enter(stream)
        except EngineError as error:
            flight.has_failed = True
            stream.fail(Failed(add.request_id, -1, error.code, error.message))

    def _decide(self, message: Check | Enter) -> None:
        tenant = self.desk.tenants.by_name(message.tenant)
        try:
            if isinstance(message, Check):
                self.desk.check(tenant, message.num_bytes)
                self.send(Answer(message.number))
                return
            demand = Demand(
                message.num_bytes,
                message.num_prompts,
                message.num_choices,
                message.max_tokens,
                message.ends_by_itself,
                message.num_prompt_tokens,
                message.deadline,
            )
            visit = self.desk.enter(tenant, demand, next(self.numbers))
        except CapacityError as error:
            self.send(TurnedAway(message.number, error.message, error.retry_after, error.rate_limits))
        except EngineError as error:
            self.send(TurnedAway(message.number, error.message, 0.0))
        else:
            self._visits[visit.number] = visit
            self.send(Entered(message.number, visit.number, visit.rate_limits))

    # ---- for the streams

    def queue(self, output: Output, time_ns: int) -> None:
        """Goes with the next ``flush``."""
        self._outputs.append(output)
        self._time_ns = time_ns

    def flush(self) -> None:
        """One message for all outputs that came together."""
        if self._outputs:
            outputs, self._outputs = tuple(self._outputs), []
            self.send(Outputs(0, self._time_ns, outputs))

    def end_stream(self, stream: RelayedStream) -> None:
        """Nothing more comes for it."""
        self._streams.pop(stream.flight.request_id, None)


def _to_nobody(message: ToGatewayProcess) -> None:
    """The gateway is gone."""
