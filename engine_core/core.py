"""The engine's busy loop: drain the inbox, schedule, launch, commit the step before (design 5).

Knows messages as values and the executor as an interface: no sockets, no tensors. With overlap one step is
pending while the next is scheduled; without it the same code commits each step before the next.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import Protocol

from engine_core.beam import BeamSearches, wire_id
from engine_core.channel import Channel, Compiled, GatewayGone, Inbound, ProfileNews, UnfitRequest
from engine_core.metrics import StepTimes
from engine_core.profiling import NoProfiler, Profiler
from engine_core.scheduler.outputs import Reply, make_output
from engine_core.scheduler.scheduler import NeedsCommit, Scheduler, StepPlan
from engine_core.sequence import Grammar, GrammarError, Request
from engine_core.step import Executor, SchedulerOutput, SequenceOutput, StepHandle
from engine_core.step_cost import StepCost, context_tokens
from engine_core.structured_output.compiling import Compiling
from engine_core.waiting_requests import waiting_requests
from ipc.journal import Journal, NoJournal
from ipc.messages import (
    Abort,
    Accepted,
    Drain,
    EventKind,
    Failed,
    Finish,
    FinishReason,
    Output,
    Outputs,
    Profile,
    WaitingRequest,
    WaitReason,
)
from ipc.params import SamplingParams

IDLE_SECONDS = 1.0
"""How long the loop sleeps at a time when there is nothing to do: it still turns, which is how others know it lives."""


class GrammarCompiler(Protocol):
    """Makes grammars on other threads."""

    def compile(
        self, kind: str, source: str, done: Callable[[Callable[[SamplingParams], Grammar] | GrammarError], None]
    ) -> None:
        """``done`` is called once, by any thread."""


@dataclass(frozen=True, slots=True)
class LaunchedStep:
    """A step on its way."""

    plan: StepPlan
    handle: StepHandle


class EngineCore:
    """One engine. ``clock``: monotonic nanoseconds. ``journal`` is told whose step begins and ends."""

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        channel: Channel,
        *,
        incarnation: int,
        overlap: bool,
        clock: Callable[[], int],
        beams: BeamSearches,
        grammars: GrammarCompiler | None = None,
        journal: Journal | None = None,
        profiler: Profiler | None = None,
    ) -> None:
        self.scheduler, self.executor, self.channel = scheduler, executor, channel
        self.times = StepTimes(clock)
        self.num_loops = 0
        self.last_plan: StepPlan | None = None
        self._incarnation, self._overlap, self._clock = incarnation, overlap, clock
        self._pending: LaunchedStep | None = None
        self._is_draining = False
        self._beams = beams
        self._grammars = grammars
        self._compiling = Compiling()
        self._journal: Journal = NoJournal() if journal is None else journal
        self._profiler: Profiler = NoProfiler(channel.send) if profiler is None else profiler

    @property
    def is_idle(self) -> bool:
        """Nothing runs, waits or is on its way."""
        return not self._has_step_to_do and not len(self._compiling)

    @property
    def num_waiting(self) -> int:
        """Sequences that do not run yet, those whose grammar is being compiled among them."""
        return self.scheduler.num_waiting + self._compiling.num_sequences

    def waiting_requests(self) -> tuple[WaitingRequest, ...]:
        """Those of which no choice runs; of beam searches nothing is said."""
        known = chain(self.scheduler.requests.values(), self._compiling)
        return waiting_requests(request for request in known if request.request_id == wire_id(request.request_id))

    def waiting_by_reason(self) -> dict[WaitReason, int]:
        """How many of them wait for what."""
        reasons = self.scheduler.waiting_by_reason()
        return reasons | {WaitReason.GRAMMAR: self._compiling.num_sequences} if len(self._compiling) else reasons

    @property
    def expected_step_ns(self) -> int:
        """What the last step launched was expected to take; 0 if that is not known. For any thread."""
        plan, cost = self.last_plan, self.scheduler.limits.step_cost
        return 0 if plan is None or cost is None else int(plan_seconds(plan.output, cost) * 1e9)

    @property
    def is_step_pending(self) -> bool:
        """A step is launched that is not committed."""
        return self._pending is not None

    @property
    def _has_step_to_do(self) -> bool:
        return self._pending is not None or self.scheduler.has_work

    def run(self, on_step: Callable[[EngineCore], None]) -> None:
        """Serve until drained. ``on_step`` is called after each step and on going idle (statistics)."""
        while not (self._is_draining and self.is_idle):
            self.step(block=True)
            on_step(self)
        kv = self.scheduler.kv
        if kv.spill():
            self.executor.copy_blocks(kv.begin_step())
            kv.end_step()
        self.executor.shutdown()
        kv.tiers.close()

    def step(self, *, block: bool = False) -> None:
        """One turn of the loop; with ``block`` it waits a while for a message when there is nothing to do."""
        self.num_loops += 1
        for inbound in self.channel.receive(timeout=self._idle_seconds() if block else 0):
            self._handle(inbound)
        with self.times.schedule:
            late = self.scheduler.drop_late()
        if len(self._compiling):
            late += self._drop_late_grammars()
        if late:
            self._reply(late)
        launched = self._launch()
        if self._overlap:
            pending, self._pending = self._pending, launched
            self._commit(pending)
            self._sample(launched)
        else:
            self._sample(launched)
            self._commit(launched)

    def _idle_seconds(self) -> float:
        """How long to wait for a message. A request whose grammar is being compiled must end when it is too late."""
        if self._has_step_to_do:
            return 0
        seconds = self._compiling.seconds_to_deadline(self._clock())
        return IDLE_SECONDS if seconds is None else min(seconds, IDLE_SECONDS)

    # ---- a step, in parts

    def _launch(self) -> LaunchedStep | None:
        with self.times.schedule:
            try:
                plan = self.scheduler.schedule(is_step_pending=self._pending is not None)
            except NeedsCommit:
                plan = None
                must_commit = True
            else:
                must_commit = False
        if must_commit:
            pending, self._pending = self._pending, None
            self._commit(pending)
            with self.times.schedule:
                plan = self.scheduler.schedule(is_step_pending=False)
        if plan is None:
            if self._pending is None:
                self.scheduler.wait_for_disk()
            return None
        self.last_plan = plan
        self._journal.begin(plan.output.step, (wire_id(seq.request.request_id) for seq in plan.sequences))
        with self.times.launch:
            handle = self.executor.launch(plan.output)
        self.times.count_step(plan.num_tokens, len(plan.sequences))
        return LaunchedStep(plan, handle)

    def _sample(self, launched: LaunchedStep | None) -> None:
        """Rows with a host mask are drawn now that all tokens before them are known."""
        if launched is not None and any(entry.needs_commit for entry in launched.plan.output.scheduled):
            masks, failures = self.scheduler.masks(launched.plan)
            self.executor.launch_sample(launched.handle, masks)
            self._reply(failures)

    def _commit(self, launched: LaunchedStep | None) -> None:
        if launched is None:
            return
        with self.times.wait:
            result = launched.handle.result()
        with self.times.commit:
            self._reply(self.scheduler.commit(launched.plan, result))
        self._journal.end(launched.plan.output.step)

    def _reply(self, replies: list[Reply]) -> None:
        """One message a gateway for all outputs; failures are messages of their own, and the last word."""
        by_owner: defaultdict[bytes, list[Output]] = defaultdict(list)
        failures: list[tuple[bytes, Failed]] = []
        if len(self._beams):
            replies = self._beams.take(replies)
        for reply in replies:
            if isinstance(reply.message, Output):
                by_owner[reply.owner].append(reply.message)
            else:
                failures.append((reply.owner, reply.message))
        now = self._clock()
        for owner, outputs in by_owner.items():
            self.channel.send(owner, Outputs(self._incarnation, now, tuple(outputs)))
        for owner, failure in failures:
            self.channel.send(owner, failure)

    # ---- messages

    def _handle(self, inbound: Inbound) -> None:
        owner, message = inbound
        match message:
            case Request():
                self._take(message)
            case Compiled():
                self._take_grammar(message)
            case UnfitRequest():
                self.channel.send(owner, Failed(message.request_id, -1, "invalid", message.problem))
            case Finish():
                self._finish(message)
            case Abort():
                self._abort(message.request_id)
            case GatewayGone():
                self._compiling.forget(owner)
                self._beams.forget(owner)
                for request in [request for request in self.scheduler.requests.values() if request.owner == owner]:
                    self.scheduler.abort(request.request_id)
            case Drain():
                self._is_draining = True
            case Profile() | ProfileNews():
                self._profiler.take(self, owner, message)

    def _take(self, request: Request) -> None:
        if any(request.request_id in known for known in (self.scheduler.requests, self._compiling, self._beams)):
            self._refuse(request, "duplicate_id", "this request id is in use")
        elif request.grammar is None:
            self._add(request)
        elif self._grammars is None:
            self._refuse(request, "invalid_grammar", "this engine has no grammar backend")
        else:
            owner, request_id = request.owner, request.request_id
            self._compiling.hold(request, self._clock())
            self._grammars.compile(
                *request.grammar, lambda result: self.channel.post(owner, Compiled(request_id, result))
            )

    def _take_grammar(self, message: Compiled) -> None:
        request = self._compiling.release(message.request_id)
        if request is None:
            return  # its client is gone, or its deadline is over
        try:
            if isinstance(message.result, GrammarError):
                raise message.result
            for seq in request.sequences:
                seq.grammar = message.result(request.params)
                seq.grammar.accept(tuple(seq.token_ids[seq.num_prompt_tokens :]))
                seq.record(EventKind.GRAMMAR_READY, self._clock())
        except GrammarError as error:
            self._refuse(request, "invalid_grammar", str(error))
        else:
            self._add(request)

    def _finish(self, message: Finish) -> None:
        reason = FinishReason(message.reason)
        # What a dead engine had sent may end in a stop string that is found only now.
        seq = self._compiling.take_choice(message.request_id, message.choice)
        if seq is not None:
            self._reply([make_output(seq, (), SequenceOutput(), reason, None)])
        else:
            self._reply(self.scheduler.finish(message.request_id, message.choice, reason, message.num_tokens))

    def _drop_late_grammars(self) -> list[Reply]:
        """They were taken, and then it was too late: so they are accepted, and end like those that wait for a step."""
        replies = []
        for request in self._compiling.take_late(self._clock()):
            self.channel.send(request.owner, Accepted(request.request_id))
            replies += [
                make_output(seq, (), SequenceOutput(), FinishReason.DEADLINE, None) for seq in request.sequences
            ]
        return replies

    def _abort(self, request_id: int) -> None:
        if (request := self._compiling.release(request_id)) is not None:
            self._refuse(request, "aborted", "aborted before its grammar was compiled")
        else:
            self._reply(self._beams.abort(request_id) or self.scheduler.abort(request_id))

    def _refuse(self, request: Request, code: str, text: str) -> None:
        self.channel.send(request.owner, Failed(request.request_id, -1, code, text))

    def _add(self, request: Request) -> None:
        failure = None
        if self._is_draining:
            failure = ("draining", "the engine takes no new requests")
        elif (problem := self.scheduler.why_impossible(request)) is not None:
            failure = ("impossible", problem)
        if failure is not None:
            self._refuse(request, *failure)
            return
        self.channel.send(request.owner, Accepted(request.request_id))
        if request.beam is None:
            self.scheduler.add(request)
        else:
            self._beams.begin(request)


def plan_seconds(plan: SchedulerOutput, cost: StepCost) -> float:
    """What a step takes, as far as it was timed."""
    num_context_tokens = sum(context_tokens(entry.start, entry.num_tokens) for entry in plan.scheduled)
    return cost.seconds(plan.num_tokens, len(plan.scheduled), num_context_tokens)
