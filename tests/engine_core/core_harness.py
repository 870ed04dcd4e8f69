"""An engine without sockets, tensors and time: the real core and scheduler on a fake channel and a fake device."""

from collections.abc import Callable
from dataclasses import dataclass, field

from fake_device import KV, FakeDevice
from fake_disk import FakeDisk
from fake_model import VOCAB_SIZE, make_grammar
from ledger import Ledger
from step_checks import check_blocks_and_slots, check_plan, live_sequences

from engine_core import registry
from engine_core.beam import BeamSearches
from engine_core.channel import Compiled, GatewayGone, Inbound, ProfileNews
from engine_core.core import EngineCore
from engine_core.kv_cache.host_tier import HostTier
from engine_core.kv_cache.manager import KVCacheManager
from engine_core.kv_cache.tier_costs import PreemptionMode, TierCosts
from engine_core.profiling import LoopProfiler, Recorder
from engine_core.request_builder import AddReader
from engine_core.scheduler.scheduler import Scheduler, SchedulerLimits
from engine_core.sequence import GrammarError
from engine_core.step import SchedulerOutput
from engine_core.step_cost import StepCost
from engine_core.structured_output.pool import GrammarFactory
from ipc.codec import pack_ids
from ipc.messages import Abort, Accepted, Add, Drain, Failed, Finish, Profiled, ToGateway
from ipc.params import BeamParams, SamplingParams

GATEWAY = b"gateway"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """An engine's shape. Blocks may be smaller than a real engine's."""

    num_blocks: int = 64
    block_size: int = 4
    max_num_seqs: int = 4
    max_num_batched_tokens: int = 16
    max_model_len: int = 64
    policy: str = "fcfs"
    enable_prefix_caching: bool = True
    overlap: bool = True
    step_cost: StepCost | None = None
    num_host_blocks: int = 0
    has_disk: bool = False
    preemption_mode: PreemptionMode = "swap"  # if there are host blocks


@dataclass(slots=True)
class FakeChannel:
    """The two queues. ``receive`` must not be asked to wait: nobody would wake it."""

    inbox: list[Inbound] = field(default_factory=list)
    sent: list[tuple[bytes, ToGateway]] = field(default_factory=list)
    broadcasts: list[ToGateway] = field(default_factory=list)

    def receive(self, *, timeout: float | None) -> list[Inbound]:
        assert timeout == 0 or self.inbox, "the loop would wait for ever"
        messages, self.inbox = self.inbox, []
        return messages

    def post(self, owner: bytes, message: Compiled | ProfileNews) -> None:
        self.inbox.append((owner, message))

    def send(self, owner: bytes, message: ToGateway) -> None:
        self.sent.append((owner, message))

    def broadcast(self, message: ToGateway) -> None:
        self.broadcasts.append(message)


@dataclass(slots=True)
class FakeGrammars:
    """Compiles at once, or when ``finish`` is called. The kind ``broken`` does not compile."""

    is_slow: bool = False
    waiting: list[Callable[[], None]] = field(default_factory=list)

    def compile(self, kind: str, source: str, done: Callable[[GrammarFactory | GrammarError], None]) -> None:
        result = GrammarError("no such grammar") if kind == "broken" else lambda params: make_grammar(source)
        self.waiting.append(lambda: done(result))
        if not self.is_slow:
            self.finish()

    def finish(self) -> None:
        waiting, self.waiting = self.waiting, []
        for tell in waiting:
            tell()


def make_clock() -> Callable[[], int]:
    """Moves by one nanosecond a look."""
    now = 0

    def clock() -> int:
        nonlocal now
        now += 1
        return now

    return clock


class CoreHarness:
    """Checks every plan, step and message; a ledger for each gateway. ``record``: makes profiles."""

    def __init__(self, sizes: Sizes, record: Recorder | None = None) -> None:
        self.sizes = sizes
        self.disk = FakeDisk(lambda index: self.device.kv[sizes.num_blocks + index]) if sizes.has_disk else None
        self.tiers: HostTier | None = None
        if sizes.num_host_blocks:
            costs = TierCosts(sizes.preemption_mode)
            self.tiers = HostTier(sizes.num_blocks, sizes.num_host_blocks, costs, self.disk)
        self.kv = KVCacheManager(
            sizes.num_blocks,
            sizes.block_size,
            enable_prefix_caching=sizes.enable_prefix_caching,
            root=b"root",
            tiers=self.tiers,
        )
        limits = SchedulerLimits(sizes.max_num_seqs, sizes.max_num_batched_tokens, sizes.max_model_len, sizes.step_cost)
        clock = make_clock()
        self.scheduler = Scheduler(registry.load("policy", sizes.policy)(), self.kv, limits, clock)
        self.device = FakeDevice(
            self.scheduler.num_slots,
            sizes.num_blocks + sizes.num_host_blocks,
            sizes.block_size,
            sizes.max_model_len,
            on_launch=self._on_launch,
            owner_of_slot=self._owner_of_slot,
        )
        self.channel = FakeChannel()
        self.grammars = FakeGrammars()
        self.profiler = None if record is None else LoopProfiler(record, self.channel.post, self.channel.send)
        self.core = EngineCore(
            self.scheduler,
            self.device,
            self.channel,
            incarnation=7,
            overlap=sizes.overlap,
            clock=clock,
            beams=BeamSearches(self.scheduler, VOCAB_SIZE),
            grammars=self.grammars,
            profiler=self.profiler,
        )
        self.read = AddReader(VOCAB_SIZE, self.kv.extend_hashes)
        self.is_broken = False
        self._meanings: dict[bytes, tuple[KV | None, ...]] = {}
        self.ledgers: dict[bytes, Ledger] = {}
        self.plans: list[SchedulerOutput] = []

    # ---- what gateways do

    def add(self, add: Add, owner: bytes = GATEWAY) -> None:
        """A request arrives."""
        self.ledgers.setdefault(owner, Ledger()).submit(add)
        self.channel.inbox.append((owner, self.read(owner, add)))

    def want(self, message: Finish | Abort, owner: bytes = GATEWAY) -> None:
        """A gateway wants an end."""
        self.ledgers[owner].want(message)
        self.channel.inbox.append((owner, message))

    def drain(self) -> None:
        """Somebody wants the engine to end."""
        self.channel.inbox.append((GATEWAY, Drain()))

    def lose(self, owner: bytes) -> None:
        """A gateway is gone: from the next step on nothing may be sent to it."""
        self.channel.inbox.append((owner, GatewayGone()))
        self.ledgers.pop(owner, None)

    # ---- what the engine does

    def step(self) -> list[tuple[bytes, ToGateway]]:
        """One turn of the loop; what it sent."""
        self.is_broken = True  # until all of this has worked
        self.core.step()
        sent, self.channel.sent = self.channel.sent, []
        for owner, message in sent:
            if owner in self.ledgers and not isinstance(message, Profiled):
                self.ledgers[owner].take(message)
            else:  # it is gone: this was said before the engine knew
                assert isinstance(message, Accepted | Failed | Profiled)
        check_blocks_and_slots(self.scheduler)
        self._check_published()
        self.is_broken = False
        return sent

    def run_until_idle(self) -> list[tuple[bytes, ToGateway]]:
        """Until nothing is left to do. Raises AssertionError when that takes longer than it can."""
        sent = self.step() + self.step()  # what has a grammar is in the scheduler from the second on
        for _ in range(self._most_steps()):
            if self.core.is_idle:
                break
            sent += self.step()
        assert self.core.is_idle, "the engine goes round in circles"
        self.scheduler.check_integrity()
        assert not self.device.queue
        for ledger in self.ledgers.values():
            assert all(entry.is_ended for entry in ledger.entries.values())
        return sent

    def _most_steps(self) -> int:
        """The oldest sequence gets on by a token at least every other step, and preemption begins again."""
        work = sum(seq.num_prompt_tokens + seq.request.params.max_tokens for seq in live_sequences(self.scheduler))
        entries = [entry for ledger in self.ledgers.values() for entry in ledger.entries.values()]
        for add in [entry.add for entry in entries if entry.add.beam is not None and not entry.is_ended]:
            longest = len(add.prompt_ids) // 4 + add.params.max_tokens
            work += longest * add.params.max_tokens * add.beam.width  # each may have to be computed again
        return 4 * work + 8

    def _check_published(self) -> None:
        """What the prefix cache can find is computed, and a hash stands for one prefix for ever."""
        # A host block that is findable may have its copy still to come, in a step that holds a reference.
        host_blocks = self.tiers.pool.blocks if self.tiers is not None else []
        for block in [*self.kv.pool.blocks, *(block for block in host_blocks if not block.num_references)]:
            if block.block_hash is not None:
                contents = tuple(self.device.kv[block.block_id])
                assert None not in contents, f"block {block.block_id} is findable before it is computed"
                assert self._meanings.setdefault(block.block_hash, contents) == contents

    def _on_launch(self, plan: SchedulerOutput) -> None:
        self.plans.append(plan)
        check_plan(self.scheduler, plan)

    def _owner_of_slot(self, slot: int) -> bytes:
        return next(seq.request.extra_keys for seq in self.scheduler.running if seq.slot == slot)


def make_add(
    request_id: int,
    prompt_ids: list[int],
    params: SamplingParams = SamplingParams(),  # noqa: B008 - immutable
    *,
    n: int = 1,
    arrival_ns: int | None = None,
    num_prompt_logprobs: int = -1,
    cache_salt: str = "",
    priority: int = 0,
    tenant: str = "",
    weight: float = 1.0,
    deadline_ns: int = 0,
    grammar: str | None = None,
    beam: BeamParams | None = None,
    choices: dict[int, list[int]] | None = None,
) -> Add:
    """A request as a gateway sends it; with ``choices`` it is resumed from their tokens, else it has ``n`` new ones."""
    outputs: dict[int, list[int]] = {index: [] for index in range(n)} if choices is None else choices
    return Add(
        request_id=request_id,
        arrival_ns=request_id if arrival_ns is None else arrival_ns,
        model="",
        prompt_ids=pack_ids(prompt_ids),
        params=params,
        choices=tuple((index, pack_ids(ids)) for index, ids in outputs.items()),
        num_prompt_logprobs=num_prompt_logprobs,
        grammar=None if grammar is None else ("broken" if grammar == "broken" else "alternating", grammar),
        cache_salt=cache_salt,
        priority=priority,
        tenant=tenant,
        weight=weight,
        deadline_ns=deadline_ns,
        is_resumed=choices is not None,
        beam=beam,
    )
