"""A policy under load: the real scheduler, a clock of its own, and steps that take what a cost model says.

Nothing here waits or depends on the machine: a run is a function of its arrivals.
"""

import heapq
import random
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field

from engine_core import registry
from engine_core.kv_cache.manager import KVCacheManager
from engine_core.scheduler.outputs import Reply
from engine_core.scheduler.scheduler import Scheduler, SchedulerLimits, StepPlan
from engine_core.sequence import Request, Sequence
from engine_core.step import ModelRunnerOutput, SequenceOutput
from engine_core.step_cost import StepCost, context_tokens
from ipc.codec import unpack_ids
from ipc.messages import FinishReason, Output
from ipc.params import SamplingParams

SECOND = 1_000_000_000
MAX_MODEL_LEN = 8192
TOKEN, EOS = 7, 1

GPU_LIKE = StepCost(floor=0.010, row=0.00002, sequence=0.00002, context=1e-9)
"""Reading the weights is most of a step, however many decode."""

CPU_LIKE = StepCost(floor=0.005, row=0.0003, sequence=0.0001, context=2e-8)
"""Design 9: a decode alone takes 5 ms, 32 of them 13, a prompt of 128 tokens 38."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A request, and how long its output is going to be. Times in seconds; ``timeout`` from its arrival."""

    arrival: float
    prompt_tokens: int = 32
    output_tokens: int = 32
    max_tokens: int = 256
    tenant: str = ""
    weight: float = 1.0
    priority: int = 0
    timeout: float | None = None
    n: int = 1


@dataclass(slots=True)
class Outcome:
    """What became of a job. Times in seconds since the beginning."""

    job: Job
    first_token: float | None = None
    end: float | None = None
    finishes: list[FinishReason] = field(default_factory=list)
    num_tokens: int = 0

    @property
    def latency(self) -> float:
        """From arrival to the end, seconds."""
        assert self.end is not None
        return self.end - self.job.arrival


class Simulation:
    """An engine at time 0."""

    def __init__(
        self,
        policy: str,
        cost: StepCost = GPU_LIKE,
        *,
        max_num_seqs: int = 32,
        num_blocks: int = 65536,
        max_num_batched_tokens: int = 2048,
    ) -> None:
        self.now_ns = 0
        self.cost = cost
        self.policy = registry.load("policy", policy)()
        kv = KVCacheManager(num_blocks, 16, enable_prefix_caching=False)
        limits = SchedulerLimits(max_num_seqs, max_num_batched_tokens, MAX_MODEL_LEN, cost)
        self.scheduler = Scheduler(self.policy, kv, limits, lambda: self.now_ns)
        self.outcomes: list[Outcome] = []
        self._arrivals: list[tuple[int, int, Outcome]] = []  # (nanoseconds, request id, ...)

    def add(self, jobs: Iterable[Job]) -> list[Outcome]:
        """They arrive when it is time."""
        outcomes = [Outcome(job) for job in jobs]
        for outcome in outcomes:
            arrival_ns = round(outcome.job.arrival * SECOND)
            heapq.heappush(self._arrivals, (arrival_ns, len(self.outcomes), outcome))
            self.outcomes.append(outcome)
        return outcomes

    def run(self, until: float = float("inf")) -> "Simulation":
        """Until all have ended, or that many seconds have passed."""
        while self.step() and self.now_ns < until * SECOND:
            pass
        return self

    def step(self) -> bool:
        """One turn of the loop; False when there is nothing to do and nothing to come."""
        if not self.scheduler.has_work and self._arrivals:
            self.now_ns = max(self.now_ns, self._arrivals[0][0])
        while self._arrivals and self._arrivals[0][0] <= self.now_ns:
            _, request_id, outcome = heapq.heappop(self._arrivals)
            self.scheduler.add(make_request(request_id, outcome.job))
        self._take(self.scheduler.drop_late())
        plan = self.scheduler.schedule(is_step_pending=False)
        if plan is None:
            return self.scheduler.has_work or bool(self._arrivals)
        self.now_ns += round(self._seconds(plan) * SECOND)
        outputs = tuple(self._draw(*row) for row in zip(plan.sequences, plan.output.scheduled, strict=True))
        self._take(self.scheduler.commit(plan, ModelRunnerOutput(outputs)))
        return True

    def _draw(self, seq: Sequence, entry: object) -> SequenceOutput:
        if not entry.samples:  # type: ignore[attr-defined]
            return SequenceOutput()
        job = self.outcomes[seq.request.request_id].job
        return SequenceOutput((EOS if seq.num_output_tokens + 1 == job.output_tokens else TOKEN,))

    def _seconds(self, plan: StepPlan) -> float:
        entries = plan.output.scheduled
        context = sum(context_tokens(entry.start, entry.num_tokens) for entry in entries)
        return self.cost.seconds(plan.output.num_tokens, len(entries), context)

    def _take(self, replies: list[Reply]) -> None:
        for reply in replies:
            message = reply.message
            assert isinstance(message, Output)
            outcome = self.outcomes[message.request_id]
            now, num_tokens = self.now_ns / SECOND, len(unpack_ids(message.token_ids))
            outcome.num_tokens += num_tokens
            if num_tokens and outcome.first_token is None:
                outcome.first_token = now
            if message.finish is not None:
                outcome.finishes.append(FinishReason(message.finish))
                assert len(outcome.finishes) <= outcome.job.n, "a choice ends once"
                outcome.end = now


def make_request(request_id: int, job: Job) -> Request:
    """As the engine's reader would make it."""
    params = SamplingParams(max_tokens=job.max_tokens, eos_token_ids=(EOS,))
    arrival_ns = round(job.arrival * SECOND)
    request = Request(
        request_id,
        b"",
        arrival_ns,
        params,
        job.prompt_tokens,
        priority=job.priority,
        tenant=job.tenant,
        weight=job.weight,
        deadline_ns=0 if job.timeout is None else arrival_ns + round(job.timeout * SECOND),
        stop_set=params.stop_set,
    )
    for choice in range(job.n):
        request.sequences.append(Sequence(request, choice, [2] * job.prompt_tokens))
    return request


def poisson(rate: float, seconds: float, seed: int, **fields: object) -> list[Job]:
    """Jobs at so many a second, with outputs of 16 to 112 tokens."""
    dice, time, jobs = random.Random(seed), 0.0, []
    while (time := time + dice.expovariate(rate)) < seconds:
        values = {"prompt_tokens": dice.randint(32, 96), "output_tokens": dice.randint(16, 112), **fields}
        jobs.append(Job(arrival=time, **values))  # type: ignore[arg-type]
    return jobs


def median_latency(outcomes: Iterable[Outcome]) -> float:
    """Of those that ended, seconds."""
    return statistics.median(outcome.latency for outcome in outcomes if outcome.end is not None)
