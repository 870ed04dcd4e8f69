"""The gateway's handle on an engine: submit a request at token level, get its outputs, abort it.

Keeps what is in flight, so that another engine can go on with it (design 8). Knows no HTTP and no text. One thread
only, the event loop's.
"""

import asyncio
import itertools
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from gateway.deadline_alarm import DeadlineAlarm
from gateway.engine_stream import EngineStream, GenerationRequest
from gateway.flight import Flight
from gateway.notifier import Notifier
from gateway.profile_questions import ProfileQuestions
from gateway.quarantine import Quarantine, Verdict
from gateway.request_view import EngineView, RequestView, view_request, waits_of
from ipc.errors import EngineError
from ipc.messages import (
    Abort,
    Accepted,
    Add,
    Beat,
    Drain,
    Failed,
    Finish,
    FinishReason,
    Output,
    Outputs,
    Profile,
    Profiled,
    Ready,
    Refused,
    Stats,
    ToEngine,
    ToGateway,
)

NOT_READY = "the engine is not ready"
OUTAGE_SECONDS = 10.0  # without an engine, after which whoever deals out requests should look elsewhere


class Connection(Protocol):
    """The way to one engine incarnation (``gateway.engine_connection``)."""

    def start(self, on_message: Callable[[ToGateway], None]) -> None: ...

    def send(self, message: ToEngine) -> None: ...

    def close(self) -> None: ...


class Stream(Protocol):
    """Whoever gets what an engine sends for one request. ``notifier`` is told once for all outputs of a message."""

    flight: Flight
    notifier: Notifier

    def accept(self) -> None: ...

    def push(self, output: Output, time_ns: int) -> None: ...

    def fail(self, message: Failed | Refused) -> None: ...


class EngineClient:
    """One engine at a time, and its successors. ``on_stats`` is told every ``Stats``, ``on_ready`` every ``Ready``.

    While an engine is replaced, requests wait: those that ran go on from the tokens they have, new ones begin. One that
    no engine has ends here when its deadline is over. ``clock``: the nanoseconds that deadlines are given in.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        on_stats: Callable[[Stats], None],
        on_ready: Callable[[Ready], None],
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.loop = loop
        self.num_resumed = 0  # requests that another engine had begun
        self.last_beat: Beat | None = None
        self.profiles = ProfileQuestions(self._ask_profile)
        self._on_stats, self._on_ready = on_stats, on_ready
        self._connection: Connection | None = None
        self._ready: Ready | None = None
        self._is_connected = False
        self._quarantine = Quarantine()
        self._resuming: set[int] = set()  # given to the present engine as it came, no output yet
        self._why_not_ready = (NOT_READY, "not_ready")  # message and code
        self._streams: dict[int, Stream] = {}
        self._clock = clock
        self._lost_ns, self._why_lost = 0, ""  # since when there is no engine, while another one is to come
        self._alarm = DeadlineAlarm(loop, clock, self._end_late)
        self._report: Stats | None = None  # the present engine's last, of so many
        self._num_reports = 0
        self._left: dict[int, Flight] = {}  # aborted; the engine has not said yet what they have cost
        # Ids are unique among gateways: a random beginning, then a counter.
        self._ids = itertools.count(secrets.randbits(32) << 32)

    @property
    def ready(self) -> Ready:
        """What the engine said of itself. Raises EngineError (503) while there is none."""
        if self._ready is None:
            message, code = self._why_not_ready
            raise EngineError(message, code=code, status=503)
        return self._ready

    @property
    def is_ready(self) -> bool:
        """Requests are taken, though they may have to wait for an engine that comes in another's place."""
        return self._ready is not None

    def check_outage(self) -> None:
        """Raises EngineError (503), with the reason, when there has been no engine for a while. Requests wait for one
        all the same."""
        _ = self.ready
        seconds = (self._clock() - self._lost_ns) * 1e-9
        if not self._is_connected and seconds >= OUTAGE_SECONDS:
            raise EngineError(f"no engine for {seconds:.0f} s: {self._why_lost}", code="no_engine", status=503)

    def explain_outage(self, reason: str) -> None:
        """Why there is still no other engine."""
        self._why_lost = reason

    @property
    def is_connected(self) -> bool:
        """The present engine has said that it serves."""
        return self._is_connected

    @property
    def num_in_flight(self) -> int:
        """Requests that have not ended."""
        return len(self._streams)

    def requests(self) -> list[RequestView]:
        """Each of them, for whoever looks at the server."""
        engine = EngineView(
            self._clock(),
            self._is_connected,
            self._lost_ns,
            self._quarantine.held,
            self._num_reports,
            waits_of(self._report),
        )
        return [view_request(stream.flight, engine) for stream in self._streams.values()]

    def connect(self, connection: Connection) -> None:
        """An engine was started, perhaps in another's place: what it sends comes here."""
        self._connection = connection
        self.last_beat = self._report = None
        self._num_reports = 0
        self._why_not_ready = (NOT_READY, "not_ready")
        self._why_lost = "another one is starting"
        connection.start(self._receive)

    def lose(self, in_step: Mapping[int, bool], *, was_killed: bool) -> Verdict:
        """The engine has died with these requests in its step, and another one may come: requests wait for it.

        ``in_step``: whether each had been through a step before. ``was_killed``: by a signal that anybody may send. A
        request that must have been the reason fails.
        """
        if self._connection is not None:
            self._connection.close()
        if self._is_connected:
            self._lost_ns = self._clock()
        self._connection, self._is_connected, self._why_lost = None, False, "it died"
        self.profiles.lose("the engine died, and its profile is lost")
        self._left.clear()
        for stream in list(self._streams.values()):
            self._settle(stream, stream.flight.what_was_over())
        streams = self._streams
        # A beam search has no output before its end, by which it could be cleared: once under way it is not suspected.
        suspects = [
            request_id
            for request_id, was_tested in in_step.items()
            if request_id in streams and not (was_tested and streams[request_id].flight.add.beam is not None)
        ]
        verdict = self._quarantine.crash(
            suspects, lambda request_id: streams[request_id].flight.has_output, was_killed=was_killed
        )
        self._resuming = set()
        if verdict.condemned is not None:
            text = "the engine died each time that this request ran"
            self._fail(Failed(verdict.condemned, -1, "engine_killed", text))
        self._end_late()
        return verdict

    def disconnect(self, error: EngineError) -> None:
        """The engine is gone for good: every request ends with ``error``, new ones are refused for the same reason.

        Told again, it does nothing.
        """
        if self._connection is None and self._ready is None:
            return
        if self._connection is not None:
            self._connection.close()
        self._connection = self._ready = None
        self._is_connected = False
        self._why_not_ready = (error.message, error.code)
        self.profiles.lose(error.message)
        self._left.clear()
        self._alarm.set(())
        for request_id in list(self._streams):
            self._fail(Failed(request_id, -1, error.code, error.message))

    def submit(self, request: GenerationRequest, notifier: Notifier | None = None) -> EngineStream:
        """Send a request; one who reads several gives them the same ``notifier``. Raises EngineError (503) while no
        engine is ready."""
        _ = self.ready
        stream = EngineStream(self, next(self._ids), request, notifier or Notifier())
        self.enter(stream)
        return stream

    def enter(self, stream: Stream) -> None:
        """``stream`` gets what is computed for its request. Raises EngineError (503) while no engine is ready."""
        _ = self.ready
        self._streams[stream.flight.request_id] = stream
        if self._is_connected:
            self._begin(stream.flight)
        else:
            self._alarm.watch(stream.flight.add.deadline_ns)

    def finish(self, stream: Stream, choice: int, num_tokens: int) -> None:
        """A stop string ended the choice after so many output tokens: the engine is told, and answers."""
        flight = stream.flight
        if not flight.choices[choice].is_finished:
            flight.choices[choice].end = num_tokens
            self.send(Finish(flight.request_id, choice, FinishReason.STOP, num_tokens))
            if not self._is_connected:
                self._settle(stream, flight.what_was_over())

    def forget(self, stream: Stream) -> None:
        """The stream's owner has left it: abort in the engine what has not ended."""
        flight = stream.flight
        if self._streams.pop(flight.request_id, None) is not None:
            if flight.bill is not None and self._is_connected and flight.was_sent:
                self._left[flight.request_id] = flight
            self.send(Abort(flight.request_id))
            self._clear(flight.request_id)

    def drain(self) -> None:
        """Tell the engine to end when its last request is done."""
        self.send(Drain())

    def _ask_profile(self, message: Profile) -> bool:
        if self._is_connected:
            self.send(message)
        return self._is_connected

    def send(self, message: Add | Finish | Abort | Drain | Profile) -> None:
        """To the engine, if there is one: what is for a dead engine concerns nobody."""
        if self._connection is not None:
            self._connection.send(message)

    # ---- what comes

    def _receive(self, message: ToGateway) -> None:
        match message:
            case Outputs():
                self._push(message)
            case Accepted():
                if (stream := self._streams.get(message.request_id)) is not None:
                    stream.flight.history.accepted_at = self._num_reports
                    stream.accept()
            case Refused():
                self._fail(message)
            case Failed():
                if message.choice >= 0:  # the request fails as a whole: its other choices are for nobody
                    self.send(Abort(message.request_id))
                self._fail(message)
            case Beat():
                self.last_beat = message
            case Stats():
                self._report = message
                self._num_reports += 1
                self._on_stats(message)
            case Profiled():
                self.profiles.receive(message)
            case Ready():
                self._take_over(message)

    def _push(self, message: Outputs) -> None:
        streams, time_ns = self._streams, message.time_ns
        notifiers: dict[Notifier, None] = {}  # in order
        try:
            for output in message.outputs:
                stream = streams.get(output.request_id)
                if stream is None:  # aborted here; the engine's answer to that
                    if output.finish is not None:
                        self._charge_left(output)
                    continue
                stream.push(output, time_ns)
                flight = stream.flight
                if not flight.has_output:
                    flight.has_output = True
                    flight.history.begin(time_ns)
                    self._clear(output.request_id)
                if output.finish is not None and flight.is_finished:
                    del streams[output.request_id]
                notifiers[stream.notifier] = None
        finally:
            # Only now: choices and prompts of one response are one event more each, but together one ``send``.
            for notifier in notifiers:
                notifier.notify()

    def _charge_left(self, output: Output) -> None:
        flight = self._left.get(output.request_id)
        if flight is not None:
            flight.take(output)
            if flight.is_finished:
                del self._left[output.request_id]

    def _fail(self, message: Failed | Refused) -> None:
        self._left.pop(message.request_id, None)
        stream = self._streams.pop(message.request_id, None)
        if stream is not None:
            stream.flight.has_failed = True
            stream.fail(message)
            self._clear(message.request_id)

    # ---- from one engine to the next

    def _take_over(self, ready: Ready) -> None:
        """An engine serves: it gets whatever has come while there was none, and what others before it have begun."""
        before, self._ready = self._ready, ready
        if before is not None and before.numerics_id != ready.numerics_id:
            text = "the engine that came in the place of one that died computes differently"
            for stream in [stream for stream in self._streams.values() if stream.flight.has_begun]:
                self._fail(Failed(stream.flight.request_id, -1, "engine_changed", text))
        self._end_late()
        self._is_connected = True
        held = self._quarantine.held
        waiting = [stream.flight for request_id, stream in self._streams.items() if request_id not in held]
        self._resuming = {flight.request_id for flight in waiting if flight.has_begun}
        for flight in sorted(waiting, key=lambda flight: flight.arrival_ns):
            self._begin(flight)
        self._release()
        self._on_ready(ready)

    def _end_late(self) -> None:
        """What no engine has and whose deadline is over ends, with the tokens it has; the next one's is waited for."""
        now_ns = self._clock()
        for stream in [one for one in self._without_engine() if 0 < one.flight.add.deadline_ns <= now_ns]:
            if stream.flight.request_id in self._streams:  # what one reader is told may make it leave others
                stream.accept()
                self._settle(stream, stream.flight.unfinished_as(FinishReason.DEADLINE))
        self._alarm.set(stream.flight.add.deadline_ns for stream in self._without_engine())

    def _without_engine(self) -> Iterable[Stream]:
        """All, while there is none; else those that the present one is spared for now."""
        if self._is_connected:
            return [self._streams[request_id] for request_id in self._quarantine.held]
        return self._streams.values()

    def _settle(self, stream: Stream, last_outputs: list[Output]) -> None:
        """There is no engine to say that choices of it are over: they are."""
        for output in last_outputs:
            stream.push(output, self._clock())
        if last_outputs:
            stream.notifier.notify()
        if stream.flight.is_finished and self._streams.pop(stream.flight.request_id, None) is not None:
            self._clear(stream.flight.request_id)

    def _begin(self, flight: Flight) -> None:
        self.send(flight.as_add())
        self.num_resumed += flight.was_sent
        flight.history.num_restarts += flight.was_sent
        flight.history.accepted_at = None
        flight.has_output, flight.was_resumed, flight.was_sent = False, flight.was_sent, True

    def _clear(self, request_id: int) -> None:
        """It has had an output of the present engine, or needs none any more."""
        self._resuming.discard(request_id)
        if not self._quarantine.is_empty:
            self._quarantine.clear(request_id)
            self._release()

    def _release(self) -> None:
        """Suspects come back when all others are back: whoever is alone with them is known to be harmless."""
        if self._is_connected and not self._resuming:
            for request_id in self._quarantine.release():
                self._begin(self._streams[request_id].flight)
