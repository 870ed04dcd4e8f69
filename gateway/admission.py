"""Who is let in, and when the others should come again (contract 3): decided before a prompt is tokenized.

Owns what is in flight and what was refused; predictions are the forecast's, rates are learned in ``admission_rates``.
Knows no HTTP. One thread only, the event loop's.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import NoReturn, Protocol

from gateway.admission_forecast import Forecast, QueueLimits
from gateway.admission_rates import AverageWork, BytesPerToken, EngineSpeed, OutputLengths, Pace, Work
from ipc.errors import CapacityError
from ipc.messages import Ready, Stats

CAUTION = 1.15
"""Times that clients who are told when to come are told a slower engine than the measured one: who comes a little late
is admitted, who comes a little early is refused again."""

MAX_RETRY_AFTER = 24 * 3600
"""Seconds. Beyond it a prediction is worth nothing."""

MAX_BOOKINGS = 8192
GRACE_SECONDS = 0.5
"""How long a client's place is kept after the time it was told."""

FORECAST_SECONDS = 0.1
"""How long a forecast counts; sooner it is extended by those who come."""


class Progress(Protocol):
    """How far one prompt's generation is (``gateway.generation.Generation``)."""

    @property
    def num_output_tokens(self) -> int: ...

    @property
    def num_cached_tokens(self) -> int: ...

    @property
    def is_finished(self) -> bool: ...


class AdmissionMetrics(Protocol):
    """Where decisions are counted (``observability.metrics.Metrics``)."""

    def count_refusal(self, reason: str) -> None: ...

    def set_admission(
        self, *, num_sequences: int, num_queued_tokens: float, wait_seconds: float, num_booked: int
    ) -> None: ...


@dataclass(frozen=True, slots=True)
class Demand:
    """What a request asks for, as far as a glance at it tells. ``num_prompt_tokens`` None: estimated from
    ``num_bytes``. ``deadline``: seconds from now within which its first token must be there."""

    num_bytes: int
    num_prompts: int = 1
    num_choices: int = 1
    max_tokens: float = math.inf
    ends_by_itself: bool = True
    num_prompt_tokens: int | None = None
    deadline: float = math.inf

    @property
    def num_sequences(self) -> int:
        """Over all prompts."""
        return self.num_prompts * self.num_choices


@dataclass(frozen=True, slots=True)
class _Generation:
    num_prompt_tokens: int
    num_choices: int
    max_tokens: int
    progress: Progress


@dataclass(slots=True, eq=False)
class Ticket:
    """A request that was let in. ``works`` are estimates until its generations are known."""

    demand: Demand
    works: list[Work]
    generations: list[_Generation] = field(default_factory=list)

    def attach(self, progress: Progress, *, num_prompt_tokens: int, num_choices: int, max_tokens: int) -> None:
        """A prompt of it is tokenized, and soon with the engine. ``max_tokens``: of each choice."""
        self.generations.append(_Generation(num_prompt_tokens, num_choices, max_tokens, progress))

    @property
    def num_estimated(self) -> float:
        """Tokens, prompt and output, that it was let in for."""
        return sum(work.num_tokens for work in self.works)

    def totals(self) -> tuple[int, int, int]:
        """Tokens so far: of the prompts, of them cached, of the outputs."""
        known = self.generations
        return (
            sum(one.num_prompt_tokens for one in known),
            sum(one.progress.num_cached_tokens for one in known),
            sum(one.progress.num_output_tokens for one in known),
        )


@dataclass(frozen=True, slots=True)
class QueueState:
    """``num_tokens``: of prompts that are not computed, estimated. ``wait_seconds``: of a short request that comes now.
    ``num_booked``: refused requests that are expected."""

    num_tokens: float
    wait_seconds: float
    num_booked: int


@dataclass(slots=True)
class _VirtualQueue:
    """Who was refused and is expected: (time told, number, work), the next one on top. ``forecast`` has the real queue
    and all of these in it; None: it must be made."""

    bookings: list[tuple[float, int, Work]] = field(default_factory=list)
    forecast: Forecast | None = None
    num_booked: int = 0
    making_took: float = 0.0

    def expire(self, now: float) -> None:
        """Whose time has passed is here or does not come."""
        while self.bookings and self.bookings[0][0] + GRACE_SECONDS <= now:
            heappop(self.bookings)

    def book(self, told: float, work: Work) -> None:
        self.num_booked += 1
        if len(self.bookings) < MAX_BOOKINGS:
            heappush(self.bookings, (told, self.num_booked, work))


class Admission:
    """Lets requests in or raises CapacityError. ``clock``: monotonic seconds."""

    def __init__(
        self, limits: QueueLimits, metrics: AdmissionMetrics, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.limits = limits
        self.speed, self.lengths = EngineSpeed(), OutputLengths()
        self.bytes_per_token, self.average = BytesPerToken(), AverageWork()
        self.num_sequences = 0  # in flight
        self._metrics, self._clock = metrics, clock
        self._ready: Ready | None = None
        self._num_slots = limits.num_sequences
        self._tickets: dict[Ticket, None] = {}  # in order of their coming
        self._forecast: Forecast | None = None
        self._num_at_forecast = 0
        self._queued_tokens = 0.0  # prompt tokens not computed yet, as of the forecast and of who came since
        self._virtual = _VirtualQueue()

    # ---- what is learned

    def start(self, ready: Ready) -> None:
        """The engine that serves. Told the same one again, nothing happens."""
        if ready is self._ready:
            return
        self._ready = ready
        self._num_slots = min(ready.max_num_seqs or self.limits.num_sequences, self.limits.num_sequences)
        self.speed.start(ready)
        self._forecast = None

    def observe(self, stats: Stats) -> None:
        """The engine's report."""
        self.speed.observe(stats)

    # ---- decisions

    def check_places(self, num_bytes: int) -> None:
        """Raises CapacityError when no place is free, whatever the request is: it need not even be read."""
        if self.num_sequences >= self.limits.num_sequences:
            demand = Demand(num_bytes, max_tokens=self.average.output_tokens, ends_by_itself=False)
            self._refuse("queued_reqs", self.works(demand), self.limits.max_wait)

    def admit(self, demand: Demand, works: list[Work]) -> Ticket:
        """The request is in flight until ``release``. ``works``: what ``demand`` means. Raises CapacityError with when
        it should come again."""
        limits = self.limits
        patience = min(limits.max_wait, demand.deadline)
        forecast = self._current()
        num_tokens = sum(work.prompt_tokens for work in works)
        reason = None
        if self._tickets:  # who comes to an empty engine is served, however long its prompts are
            if self.num_sequences + demand.num_sequences > limits.num_sequences:
                reason = "queued_reqs"
            elif self._queued_tokens + num_tokens > limits.num_tokens:
                reason = "queued_tokens"
            elif forecast.first_token(works[0]) - forecast.now > patience:
                reason = "queue_wait" if patience == limits.max_wait else "deadline"
        if reason is not None:
            self._refuse(reason, works, patience)
        ticket = Ticket(demand, works)
        for work in works:
            self.average.observe(work)
            forecast.add(work, forecast.now)
        self._queued_tokens += num_tokens
        self.num_sequences += demand.num_sequences
        self._tickets[ticket] = None
        return ticket

    def release(self, ticket: Ticket) -> None:
        """It has ended, whichever way. What it was teaches the estimates."""
        if ticket not in self._tickets:
            return
        del self._tickets[ticket]
        self.num_sequences -= ticket.demand.num_sequences
        if not self._tickets:
            self._forecast, self._queued_tokens = None, 0.0
        num_prompt_tokens = 0
        for generation in ticket.generations:
            num_prompt_tokens += generation.num_prompt_tokens
            num_output, progress = generation.progress.num_output_tokens, generation.progress
            if ticket.demand.ends_by_itself and num_output:
                # A choice that was cut off by its limit or its client has not ended by itself.
                has_ended = progress.is_finished and num_output < generation.max_tokens * generation.num_choices
                self.lengths.observe(num_output, generation.num_choices if has_ended else 0)
        if num_prompt_tokens and ticket.demand.num_prompt_tokens is None:
            self.bytes_per_token.observe(ticket.demand.num_bytes, num_prompt_tokens)

    def queue(self) -> QueueState:
        """As it is now."""
        wait = 0.0
        if self._tickets:
            forecast = self._current()
            wait = forecast.first_token(Work(1, 1.0, 1.0)) - forecast.now
        self._virtual.expire(self._clock())
        return QueueState(self._queued_tokens, wait, len(self._virtual.bookings))

    def publish(self) -> None:
        """The gauges as they are now."""
        queue = self.queue()
        self._metrics.set_admission(
            num_sequences=self.num_sequences,
            num_queued_tokens=queue.num_tokens,
            wait_seconds=queue.wait_seconds,
            num_booked=queue.num_booked,
        )

    # ---- in parts

    def works(self, demand: Demand) -> list[Work]:
        """What it means for the engine, a ``Work`` for each prompt, as far as can be told. A request of more sequences
        than there are places is one that takes all of them: its cost here is bounded."""
        num_tokens: float | None = demand.num_prompt_tokens
        if num_tokens is None:
            num_tokens = self.bytes_per_token.tokens(demand.num_bytes)
        max_tokens, num_prompts = demand.max_tokens, demand.num_prompts
        if self._ready is not None:
            max_tokens = min(max_tokens, self._ready.max_model_len)
            num_tokens = min(num_tokens, num_prompts * self._ready.max_model_len)
        output = self.lengths.expected(max_tokens, ends_by_itself=demand.ends_by_itself)
        if demand.num_sequences > self.limits.num_sequences:
            return [Work(self.limits.num_sequences, num_tokens, output)]
        return [Work(demand.num_choices, num_tokens / num_prompts, output)] * num_prompts

    def _refuse(self, reason: str, works: list[Work], patience: float) -> NoReturn:
        """Books the work where it will be admitted, and says when that is."""
        for work in works:
            self.average.observe(work)
        virtual, now = self._virtual, self._clock()
        forecast = self._expected(now)
        told = now
        for work in works:
            told = max(told, forecast.when_admitted(work, patience / CAUTION))
        seconds = min(MAX_RETRY_AFTER, max(1, math.ceil(told - now)))
        for work in works:
            forecast.add(work, now + seconds)
            virtual.book(now + seconds, work)
        self._metrics.count_refusal(reason)
        raise CapacityError(f"the server is busy ({_WHY[reason]}): try again in {seconds} s", retry_after=seconds)

    def _current(self) -> Forecast:
        """Of the real queue, made anew when it is old or much has changed."""
        now, forecast = self._clock(), self._forecast
        num_changed = abs(self.num_sequences - self._num_at_forecast)
        is_current = (
            forecast is not None
            and now < forecast.now + FORECAST_SECONDS
            and num_changed <= 8 + self._num_at_forecast // 4
        )
        if forecast is None or not is_current:
            forecast = self._forecast = self._make(now, self._pace(self.num_sequences))
            self._num_at_forecast = self.num_sequences
        return forecast

    def _expected(self, now: float) -> Forecast:
        """Of the real queue and of who was refused, on the cautious side. Making it takes longer the more there are, so
        it is then made more rarely; meanwhile those who are refused are added."""
        virtual = self._virtual
        virtual.expire(now)
        forecast = virtual.forecast
        if forecast is None or now >= forecast.now + FORECAST_SECONDS + 100 * virtual.making_took:
            started = time.perf_counter()
            forecast = self._make(now, self._pace(self._num_slots).slower(CAUTION * self.speed.slowest))
            for told, _, work in sorted(virtual.bookings):
                forecast.when_admitted(work, math.inf)
                forecast.add(work, told)
            virtual.forecast, virtual.making_took = forecast, time.perf_counter() - started
        return forecast

    def _pace(self, num_sequences: int) -> Pace:
        return Pace.of(self.speed, self.average, num_sequences, self._num_slots)

    def _make(self, now: float, pace: Pace) -> Forecast:
        """The requests that are here: those with a first token run, the others wait in their order."""
        forecast = Forecast(now, pace, self.limits)
        waiting: list[Work] = []
        for ticket in self._tickets:
            if not ticket.generations:
                waiting += ticket.works
            ends_by_itself = ticket.demand.ends_by_itself
            for generation in ticket.generations:
                if generation.progress.is_finished:
                    continue
                num_choices, num_output = generation.num_choices, generation.progress.num_output_tokens
                num_left = max(0.0, generation.max_tokens - num_output / num_choices)
                num_expected = self.lengths.expected(num_left, ends_by_itself=ends_by_itself)
                if num_output:
                    forecast.run(num_choices, num_expected)
                else:
                    waiting.append(Work(num_choices, generation.num_prompt_tokens, num_expected))
        self._queued_tokens = sum(work.prompt_tokens for work in waiting)
        for work in waiting:
            forecast.add(work, now)
        return forecast


_WHY = {
    "queued_reqs": "as many requests as may are waiting or running",
    "queued_tokens": "as many prompt tokens as may are waiting",
    "queue_wait": "the wait would be too long",
    "deadline": "the request would miss its deadline",
}
