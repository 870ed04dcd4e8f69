"""A serving engine without a model, on a clock of its own, and clients who come again when they are told to."""

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush

from gateway.admission import Admission, Demand, Ticket
from gateway.admission_forecast import QueueLimits
from ipc.errors import CapacityError
from ipc.messages import Ready, Stats

STATS_SECONDS = 0.25


@dataclass
class CountedDecisions:
    """Implements ``admission.AdmissionMetrics``."""

    refusals: dict[str, int] = field(default_factory=dict)
    gauges: dict[str, float] = field(default_factory=dict)

    def count_refusal(self, reason: str) -> None:
        self.refusals[reason] = self.refusals.get(reason, 0) + 1

    def set_admission(self, **gauges: float) -> None:
        self.gauges = gauges


@dataclass
class Generation:
    """Implements ``admission.Progress``."""

    num_prompt_tokens: int
    length: int  # of the output, known to the engine alone
    num_output_tokens: int = 0
    num_cached_tokens: int = 0
    num_computed: int = 0
    is_finished: bool = False


@dataclass(frozen=True)
class Client:
    """What one asks for. ``length``: tokens after which the output ends, at ``max_tokens`` or before."""

    num_bytes: int
    num_prompt_tokens: int
    max_tokens: int
    length: int


@dataclass(frozen=True)
class Costs:
    """Seconds of a step, as in ``engine_core.step_cost``."""

    floor: float = 0.007
    row: float = 0.0003
    sequence: float = 0.0002
    chunk: int = 256


class SimulatedEngine:
    """Steps with chunked prefill and slots, first come first served."""

    def __init__(self, num_slots: int, costs: Costs) -> None:
        self.num_slots, self.costs = num_slots, costs
        self.waiting: deque[tuple[Generation, Ticket]] = deque()
        self.running: list[tuple[Generation, Ticket]] = []
        self.steps = self.prompt_tokens = self.generation_tokens = self.step_tokens = 0
        self.busy = 0.0

    def ready(self, *, is_timed: bool = True) -> Ready:
        costs = self.costs
        seconds = (costs.floor, costs.row, costs.sequence) if is_timed else ()
        return Ready(1, 0, "n", "d", 100, 100, 4096, 16, 4096, 0, 0, self.num_slots, costs.chunk, seconds)

    def step(self) -> tuple[float, list[Ticket]]:
        """Seconds it took, and who is done."""
        while self.waiting and len(self.running) < self.num_slots:
            self.running.append(self.waiting.popleft())
        left, rows, num_scheduled, done = self.costs.chunk, 0, 0, []
        for generation, ticket in list(self.running):
            prompt_left = generation.num_prompt_tokens - generation.num_computed
            if prompt_left > 0:
                chunk = min(left, prompt_left)
                num_scheduled += chunk > 0
                generation.num_computed += chunk
                left, rows = left - chunk, rows + chunk
                self.prompt_tokens += chunk
                if chunk < prompt_left:
                    continue
            else:
                rows, num_scheduled = rows + 1, num_scheduled + 1
            generation.num_output_tokens += 1
            self.generation_tokens += 1
            if generation.num_output_tokens >= generation.length:
                generation.is_finished = True
                self.running.remove((generation, ticket))
                done.append(ticket)
        seconds = max(self.costs.floor, self.costs.row * rows) + self.costs.sequence * num_scheduled
        self.steps, self.step_tokens, self.busy = self.steps + 1, self.step_tokens + rows, self.busy + seconds
        return seconds, done

    def stats(self, now: float) -> Stats:
        return Stats(
            0,
            int(now * 1e9),
            num_running=len(self.running),
            prompt_tokens=self.prompt_tokens,
            generation_tokens=self.generation_tokens,
            steps=self.steps,
            wait_ns=int(self.busy * 1e9),
            step_tokens_sum=self.step_tokens,
        )


class Simulation:
    """Clients, admission and engine. ``now``: its seconds."""

    def __init__(
        self, limits: QueueLimits, num_slots: int, costs: Costs | None = None, *, is_timed: bool = True
    ) -> None:
        self.now = 0.0
        self.metrics = CountedDecisions()
        self.engine = SimulatedEngine(num_slots, costs or Costs())
        self.admission = Admission(limits, self.metrics, lambda: self.now)
        self.admission.start(self.engine.ready(is_timed=is_timed))
        self.arrivals: list[tuple[float, int, Client, int]] = []  # a heap; the last is how often it was refused
        self.outcomes: list[tuple[int, bool]] = []  # (how often refused before, admitted)
        self.told: list[tuple[float, int]] = []  # (when, seconds), of first refusals
        self.waits: list[tuple[float, float]] = []  # (when admitted, when it had its first token)
        self._next_stats = 0.0

    def send(self, at: float, client: Client, num_refused: int = 0) -> None:
        heappush(self.arrivals, (at, len(self.outcomes) + len(self.arrivals), client, num_refused))

    def run(self, until: Callable[[], bool]) -> None:
        while not until():
            while self.arrivals and self.arrivals[0][0] <= self.now:
                _, _, client, num_refused = heappop(self.arrivals)
                self._arrive(client, num_refused)
            if self.engine.running or self.engine.waiting:
                seconds, done = self.engine.step()
                self.now += seconds
                for ticket in done:
                    self.admission.release(ticket)
                if not (self.engine.running or self.engine.waiting):
                    self._next_stats = self.now  # on going idle
            elif self.arrivals:
                self.now = self.arrivals[0][0]
            else:
                return
            if self.now >= self._next_stats:
                self._next_stats = self.now + STATS_SECONDS
                self.admission.observe(self.engine.stats(self.now))

    def _arrive(self, client: Client, num_refused: int) -> None:
        demand = Demand(client.num_bytes, max_tokens=client.max_tokens)
        try:
            self.admission.check_places(client.num_bytes)
            ticket = self.admission.admit(demand, self.admission.works(demand))
        except CapacityError as error:
            self.outcomes.append((num_refused, False))
            if not num_refused:
                self.told.append((self.now, int(error.retry_after)))
            self.send(self.now + error.retry_after, client, num_refused + 1)
            return
        self.outcomes.append((num_refused, True))
        generation = Generation(client.num_prompt_tokens, client.length)
        ticket.attach(
            generation, num_prompt_tokens=client.num_prompt_tokens, num_choices=1, max_tokens=client.max_tokens
        )
        self.engine.waiting.append((generation, ticket))

    def admitted_share(self, num_refused: int) -> float:
        """Of those who came for the time after so many refusals."""
        came = [admitted for number, admitted in self.outcomes if number == num_refused]
        return sum(came) / len(came)


def same(num_prompt_tokens: int, length: int) -> Callable[[random.Random], Client]:
    """Clients of one kind, whose outputs end at their limit."""
    return lambda random: Client(num_prompt_tokens * 4, num_prompt_tokens, length, length)


def varied(num_prompt_tokens: int, length: int, max_tokens: int) -> Callable[[random.Random], Client]:
    """Prompts of half to one and a half times the length, outputs that end by themselves at random."""

    def make(random: random.Random) -> Client:
        num_prompt = max(1, int(num_prompt_tokens * random.uniform(0.5, 1.5)))
        num_output = max(1, min(max_tokens, int(random.expovariate(1 / length))))
        return Client(int(num_prompt * random.uniform(3.5, 4.5)), num_prompt, max_tokens, num_output)

    return make
