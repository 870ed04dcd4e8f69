"""Decides what each step computes, and learns from what it found.

No phases: every sequence has computed tokens and tokens, and a step lets some catch up within one budget.
Knows no tensors and no sockets; every end of a sequence goes through ``_leave``.
"""

from collections.abc import Callable
from dataclasses import dataclass

from engine_core.kv_cache.manager import Fork, KVCacheManager
from engine_core.scheduler.budget import TokenBudget
from engine_core.scheduler.charges import Charges
from engine_core.scheduler.deadlines import Deadlines
from engine_core.scheduler.disk_reads import DiskReads
from engine_core.scheduler.first_blocks import allocate_whole
from engine_core.scheduler.forks import Forks
from engine_core.scheduler.outputs import Reply, make_failure, make_output, why_it_failed
from engine_core.scheduler.policy import Policy
from engine_core.scheduler.step_builder import StepBuilder
from engine_core.scheduler.stopping import output_limit, stop_token_id, take_tokens
from engine_core.sequence import GrammarError, Request, Sequence, SequenceStatus
from engine_core.step import ModelRunnerOutput, ScheduledSequence, SchedulerOutput, SequenceOutput
from engine_core.step_cost import StepCost
from ipc.messages import EventKind, FinishReason, WaitReason


@dataclass(frozen=True, slots=True)
class StepPlan:
    """A step as the executor sees it, and the sequences of its entries, in the same order."""

    output: SchedulerOutput
    sequences: tuple[Sequence, ...]
    num_tokens: int
    launched_ns: int


class NeedsCommit(Exception):
    """Blocks ran out while a step is uncommitted: commit it, then schedule again. Nothing was decided."""


@dataclass(slots=True)
class SchedulerCounters:
    """Cumulative, in tokens unless said otherwise."""

    prompt_tokens: int = 0
    generation_tokens: int = 0
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0
    preemptions: int = 0  # sequences
    preemptions_by_swap: int = 0  # of them: their KV was kept in a tier


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """What a step and a sequence may hold. ``step_cost``: bounds a step's time beside its tokens."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    step_cost: StepCost | None = None


class Scheduler:
    """The sequences of one engine. ``clock``: monotonic nanoseconds."""

    def __init__(self, policy: Policy, kv: KVCacheManager, limits: SchedulerLimits, clock: Callable[[], int]) -> None:
        self.policy, self.kv, self.limits = policy, kv, limits
        self.requests: dict[int, Request] = {}
        self.running: list[Sequence] = []  # in order of admission; no finished ones
        self.counters = SchedulerCounters()
        self._forks = Forks(kv)
        self._charges = Charges(clock)
        self._reads = DiskReads(kv, clock)
        self._deadlines = Deadlines()
        self._restoring: set[Sequence] = set()  # until they have their next token
        self._clock = clock
        self._free_slots = list(range(self.num_slots - 1, -1, -1))
        self._num_steps = 0

    # ---- what is there

    @property
    def num_slots(self) -> int:
        """Device rows. A finished sequence keeps its slot until its last step is committed, one step later at
        most, so as many again as may run."""
        return 2 * self.limits.max_num_seqs

    @property
    def num_waiting(self) -> int:
        """Sequences without a slot: in the policy's set, behind their request's prompt, or behind the disk."""
        return len(self.policy) + self._forks.num_waiting + self._reads.num_waiting

    @property
    def has_work(self) -> bool:
        """Something waits or runs."""
        return bool(self.running or len(self.policy) or self._reads.num_waiting)

    def waiting_by_reason(self) -> dict[WaitReason, int]:
        """How many wait for what, as of the last step."""
        counts = {WaitReason.FORK: self._forks.num_waiting, WaitReason.KV_DISK: self._reads.num_waiting}
        reasons = {reason: count for reason, count in counts.items() if count}
        for seq in self.policy:
            reason = WaitReason.POLICY if seq.wait_reason is None else seq.wait_reason
            reasons[reason] = reasons.get(reason, 0) + 1
        return reasons

    @property
    def held_forks(self) -> list[Fork]:
        """What is held for sequences that have not begun."""
        return self._forks.held

    def check_integrity(self) -> None:
        """When idle: raise AssertionError unless every block and slot is back."""
        self.kv.check_integrity()
        assert not self.requests, f"{len(self.requests)} requests were left behind"
        assert not self.running, f"{len(self.running)} sequences still run"
        assert not self.num_waiting, f"{self.num_waiting} sequences still wait"
        assert self.kv.num_used_blocks == 0, f"{self.kv.num_used_blocks} blocks are still referenced"
        assert self.kv.tiers.num_held == 0, f"{self.kv.tiers.num_held} swapped blocks are still held"
        assert sorted(self._free_slots) == list(range(self.num_slots)), "a slot was lost or freed twice"

    # ---- what comes in

    def why_impossible(self, request: Request) -> str | None:
        """Why the request can never run: each of its sequences must fit the context and the whole pool alone."""
        longest = request.num_prompt_tokens + request.params.max_tokens
        if request.num_prompt_tokens < 1:
            return "the prompt is empty"
        if longest > self.limits.max_model_len:
            return f"prompt and max_tokens make {longest} tokens, the context holds {self.limits.max_model_len}"
        capacity = self.kv.pool.num_blocks * self.kv.block_size
        if max(longest - 1, request.num_prompt_tokens) > capacity:  # the KV of the last token is never needed
            return f"prompt and max_tokens make {longest} tokens, the KV cache holds {capacity}"
        if max(seq.num_output_tokens for seq in request.sequences) >= max(1, request.params.max_tokens):
            return f"a resumed choice has all of its {request.params.max_tokens} tokens"
        return None

    def add(self, request: Request) -> None:
        """Queue a request that is not impossible. Its first choice computes the prompt, the others fork from it."""
        self.requests[request.request_id] = request
        limit = output_limit(request, self.limits.max_model_len)
        for seq in request.sequences:
            seq.output_limit = limit
            if seq.wait_reason is None:  # else it was queued when it came, and has waited for its grammar
                seq.record(EventKind.QUEUED, self._clock())
            seq.wait_reason = None
        self._deadlines.add(request)
        if request.is_resumed:
            self._restoring.update(seq for seq in request.sequences if seq.num_output_tokens)
        self._forks.hold_back(request)
        self.policy.add(request.sequences[0])

    def let_go(self, request: Request) -> None:
        """Nobody else will be added that continues this request, which has ended by its length."""
        self._forks.let_go(request)

    def finish(self, request_id: int, choice: int, reason: FinishReason, num_tokens: int) -> list[Reply]:
        """The gateway found a stop string: the choice keeps ``num_tokens`` output tokens and ends."""
        found = [seq for seq in self._unfinished(request_id) if seq.choice == choice]
        for seq in found:
            del seq.token_ids[seq.num_prompt_tokens + num_tokens :]
        return [self._end(seq, reason) for seq in found]

    def abort(self, request_id: int) -> list[Reply]:
        """The client is gone: all choices that have not ended do. Unknown ids have ended before: nothing."""
        return [self._end(seq, FinishReason.ABORT) for seq in self._unfinished(request_id)]

    def drop_late(self) -> list[Reply]:
        """End what is past its deadline, and what the policy says cannot make it. May be called while a step is in
        flight: what that draws is for nobody. The cost does not depend on who else waits."""
        now = self._clock()
        expired = self._deadlines.take_expired(now)
        late = [seq for request in expired for seq in self._unfinished(request.request_id)]
        replies = [self._end(seq, FinishReason.DEADLINE) for seq in late]
        return replies + [self._end(seq, FinishReason.DEADLINE) for seq in self.policy.hopeless(now)]

    def _unfinished(self, request_id: int) -> list[Sequence]:
        """Last choice first: the first one is who computes the prompt for the others."""
        request = self.requests.get(request_id)
        return [seq for seq in reversed(request.sequences) if not seq.is_finished] if request else []

    # ---- one step

    def schedule(self, *, is_step_pending: bool) -> StepPlan | None:
        """The next step, or None if nothing can run. Raises NeedsCommit instead of preempting while a step is
        pending; blocks that sequences were given until then stay theirs."""
        # While what a dead engine had begun is computed again, all of it comes before anybody's next token.
        step_cost = None if self._restoring else self.limits.step_cost
        budget = TokenBudget(self.limits.max_num_batched_tokens, step_cost)
        step = StepBuilder(budget)
        for seq in self._reads.take_ready():
            seq.wait_reason = None
            self.policy.requeue(seq)
        num_preemptions = self.counters.preemptions
        self._schedule_running(step, is_step_pending)
        if self.counters.preemptions == num_preemptions:
            self._admit_waiting(step, is_step_pending)
        self.policy.on_step(self._clock(), step.entries)
        if not step.entries:
            return None
        self._num_steps += 1
        output = step.build(self._num_steps, self.kv.begin_step(), self._clock())
        num_tokens = self.limits.max_num_batched_tokens - budget.left
        return StepPlan(output, tuple(step.entries), num_tokens, self._clock())

    def wait_for_disk(self) -> None:
        """Nothing can run and nothing is on its way: sleep a moment if somebody waits for blocks that are read."""
        self._reads.wait()

    def masks(self, plan: StepPlan) -> tuple[dict[int, bytes], list[Reply]]:
        """Slot to allowed ids for the plan's rows that waited for the commit before; finished ones need none.

        A request whose grammar cannot go on fails; what its rows draw is for nobody.
        """
        masks: dict[int, bytes] = {}
        replies: list[Reply] = []
        for seq, entry in zip(plan.sequences, plan.output.scheduled, strict=True):
            if not entry.samples or seq.grammar is None or seq.is_finished:
                continue
            try:
                masks[entry.slot] = seq.grammar.mask()
            except GrammarError as error:
                replies += self._fail(seq.request, "grammar_failed", f"the grammar cannot be followed: {error}")
        return masks, replies

    def commit(self, plan: StepPlan, result: ModelRunnerOutput) -> list[Reply]:
        """Take in what a step found: tokens, ends, published blocks."""
        replies: list[Reply] = []
        self.kv.end_step()
        self._charges.commit(plan.launched_ns, plan.num_tokens, plan.sequences, plan.output.scheduled)
        finished = SequenceStatus.FINISHED  # looked up once: an enumeration's members are slow to find
        for seq, entry, output in zip(plan.sequences, plan.output.scheduled, result.sequences, strict=True):
            seq.steps_in_flight -= 1
            seq.num_pending -= entry.samples
            if seq.status is not finished:
                self._commit_sequence(seq, entry, output, replies)
            elif not seq.steps_in_flight:
                self._retire(seq)
        return replies

    # ---- scheduling, in parts

    def _schedule_running(self, step: StepBuilder, is_step_pending: bool) -> None:
        budget, running = step.budget, SequenceStatus.RUNNING
        for seq in list(self.running):
            if seq.status is not running:  # preempted by one before it in this loop
                continue
            num_known, num_computed = len(seq.token_ids) + seq.num_pending, seq.num_computed_tokens
            # Launched steps bring it to its length limit: one more would be wasted. A prompt is always computed.
            num_prompt = seq.request.num_prompt_tokens
            if num_known > num_prompt and num_known >= num_prompt + seq.output_limit:
                continue
            num_tokens = budget.fit(num_known - num_computed, num_computed)
            if num_tokens == 0:
                continue
            num_needed = num_computed + num_tokens
            if self.kv.has_room(seq.block_table, num_needed) or self._grow(seq, num_needed, step, is_step_pending):
                step.schedule(seq, num_tokens)

    def _grow(self, seq: Sequence, num_tokens: int, step: StepBuilder, is_step_pending: bool) -> bool:
        """Give a running sequence blocks for so many tokens, whoever must be preempted for it; False if it is that
        itself."""
        self._charges.grow(seq)
        while not self.kv.allocate(seq.block_table, num_tokens):
            if self._forks.reclaim():
                continue
            if is_step_pending:
                raise NeedsCommit
            victim = self.policy.victim(self.running)
            step.remove(victim)
            self._preempt(victim, seq)
            if victim is seq:
                return False
        return True

    def _admit_waiting(self, step: StepBuilder, is_step_pending: bool) -> None:
        num_before = len(self.running)  # whoever is admitted in this step is nobody's victim
        while (seq := self.policy.peek()) is not None:
            if step.budget.is_spent:
                reason = WaitReason.TOKEN_BUDGET
            elif len(self.running) >= self.limits.max_num_seqs:
                reason = WaitReason.SEQUENCE_SLOTS
            elif self._forks.fork_of(seq) is None and self._reads.begin(seq):
                self.policy.remove(seq)
                seq.wait_reason = WaitReason.KV_DISK
                seq.record(EventKind.BLOCKED, self._clock(), seq.wait_reason)
                continue
            elif allocate_whole(self.kv, seq, self._forks.fork_of(seq)):
                self._admit(seq, step)
                continue
            elif self._forks.reclaim(but=seq if self.running or is_step_pending else None):
                continue  # when nothing can end and give blocks back, its own fork may be what is in the way
            else:
                reason = WaitReason.KV_BLOCKS
            # The budget is another matter: it is spent on a prompt that has begun, and free again next time.
            if reason is not WaitReason.TOKEN_BUDGET and self._make_way(seq, step, num_before, is_step_pending):
                num_before -= 1
                continue
            if seq.wait_reason is not reason:
                seq.wait_reason = reason
                seq.record(EventKind.BLOCKED, self._clock(), reason)
            return

    def _make_way(self, seq: Sequence, step: StepBuilder, num_before: int, is_step_pending: bool) -> bool:
        """Whether the policy had one of the first ``num_before`` running sequences preempted for ``seq``."""
        victim = self.policy.makes_way(seq, self.running[:num_before])
        if victim is None:
            return False
        if is_step_pending:
            if len(self.running) > num_before:  # something was decided: next time, then
                return False
            raise NeedsCommit
        step.remove(victim)
        self._preempt(victim, seq)
        return True

    def _admit(self, seq: Sequence, step: StepBuilder) -> None:
        now, num_known = self._clock(), seq.num_computed_tokens
        self.policy.pop()
        seq.slot = self._free_slots.pop()
        self._charges.begin(seq)
        seq.status, seq.wait_reason = SequenceStatus.RUNNING, None
        self.running.append(seq)
        if seq.was_admitted:
            seq.record(EventKind.RESUMED, now, num_known)
        else:
            seq.record(EventKind.ADMITTED, now, seq.choice)
            if num_known:
                seq.record(EventKind.CACHE_HIT, now, num_known)
            if seq is seq.request.sequences[0] and self._forks.fork_of(seq) is None:
                seq.num_cached_tokens = num_known
                self.counters.prefix_cache_queries += len(seq.token_ids) if self.kv.enable_prefix_caching else 0
                self.counters.prefix_cache_hits += num_known
            self._forks.begin(seq)
            seq.was_admitted = True
        step.bind(seq)
        step.schedule(seq, step.budget.fit(seq.num_uncomputed_tokens, num_known) or 1)
        if seq is seq.request.sequences[0] and num_known >= seq.num_prompt_tokens:
            self._release_forks(seq.request, is_computed=True)  # no commit will find the prompt done

    # ---- learning, in parts

    def _commit_sequence(
        self, seq: Sequence, entry: ScheduledSequence, output: SequenceOutput, replies: list[Reply]
    ) -> None:
        request = seq.request
        if output.failure is not None:
            replies += self._fail(request, *why_it_failed(seq, output.failure))
            return
        if output.prompt_logprobs is not None:
            request.prompt_logprobs.append(output.prompt_logprobs)
        if self._restoring and entry.samples:
            self._restoring.discard(seq)
        start = entry.start
        end = start + entry.num_tokens
        if end >= (seq.num_published_blocks + 1) * self.kv.block_size:  # a block is full
            self.kv.extend_hashes(seq.block_hashes, seq.token_ids, request.extra_keys)
            seq.num_published_blocks = self.kv.publish(seq.block_table, seq.block_hashes, end, seq.num_published_blocks)
        is_prompt_done = start < request.num_prompt_tokens <= end
        if is_prompt_done and seq is request.sequences[0]:
            if not seq.num_output_tokens:  # else it was counted before the preemption or the restart
                self.counters.prompt_tokens += request.num_prompt_tokens
            self._release_forks(request, is_computed=True)
        try:
            accepted, finish = take_tokens(seq, output.token_ids, is_prompt_done)
        except GrammarError as error:
            replies += self._fail(request, "grammar_failed", f"the grammar cannot be followed: {error}")
            return
        self.counters.generation_tokens += len(accepted)
        if finish is not None:
            replies.append(self._end(seq, finish, accepted, output))
        elif accepted:
            replies.append(make_output(seq, accepted, output, None, None))

    def _release_forks(self, request: Request, *, is_computed: bool) -> None:
        for other in self._forks.release(request, is_computed=is_computed):
            self.policy.add(other)

    # ---- ends

    def _preempt(self, victim: Sequence, by: Sequence) -> None:
        """Blocks and slot go back now; its KV waits in a tier or is computed again. No step is in flight."""
        now = self._clock()
        self.counters.preemptions += 1
        self.running.remove(victim)
        swapped = self.kv.swap_out(victim.block_table, victim.num_computed_tokens)
        kind = EventKind.PREEMPTED if swapped is None else EventKind.PREEMPTED_BY_SWAP
        victim.record(kind, now, by.request.request_id)
        self._give_back(victim)
        victim.status, victim.was_sought_on_disk = SequenceStatus.WAITING, False
        victim.num_computed_tokens, victim.swapped = 0, swapped
        self.counters.preemptions_by_swap += swapped is not None
        if swapped is None and victim.has_prompt_logprobs_to_compute:
            victim.request.prompt_logprobs.clear()
        self.policy.requeue(victim)

    def _end(
        self,
        seq: Sequence,
        reason: FinishReason,
        token_ids: tuple[int, ...] = (),
        output: SequenceOutput = SequenceOutput(),  # noqa: B008 - immutable
    ) -> Reply:
        """The sequence is finished; the reply is its last output."""
        stop_id = stop_token_id(seq) if reason is FinishReason.STOP else None
        self._charges.settle(seq)
        reply = make_output(seq, token_ids, output, reason, stop_id)
        self._leave(seq, reason)
        return reply

    def _fail(self, request: Request, code: str, message: str) -> list[Reply]:
        """All its choices end without an output of their own: the failure is the last word."""
        for seq in self._unfinished(request.request_id):
            self._leave(seq, FinishReason.ERROR)
        return [make_failure(request, code, message)]

    def _leave(self, seq: Sequence, reason: FinishReason) -> None:
        """Out of the queue or the running set; retired at once unless a launched step uses its blocks."""
        if seq.status is SequenceStatus.RUNNING:
            self.running.remove(seq)
        elif seq.waits_for_fork:
            self._forks.drop(seq)
        else:
            if not self._reads.drop(seq):
                self.policy.remove(seq)
            if not seq.was_admitted:
                self._forks.begin(seq)
        if seq.request.is_continued and reason is FinishReason.LENGTH:
            self._forks.keep(seq.request)
        seq.status, seq.finish_reason = SequenceStatus.FINISHED, reason
        if seq is seq.request.sequences[0]:  # nobody else would compute the prompt
            self._release_forks(seq.request, is_computed=False)
        self._restoring.discard(seq)
        self.policy.on_finished(seq)
        if not seq.steps_in_flight:
            self._retire(seq)

    def _retire(self, seq: Sequence) -> None:
        self._give_back(seq)
        if all(other.is_finished and other.slot < 0 for other in seq.request.sequences):
            del self.requests[seq.request.request_id]
            self._deadlines.forget(seq.request)

    def _give_back(self, seq: Sequence) -> None:
        self._charges.settle(seq)
        self.kv.release(seq.block_table)
        if seq.swapped is not None:
            self.kv.tiers.drop(seq.swapped)
            seq.swapped = None
        seq.num_published_blocks = seq.num_sent_blocks = 0
        if seq.slot >= 0:
            self._free_slots.append(seq.slot)
            seq.slot = -1
