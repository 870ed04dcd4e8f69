"""Everything at once, at random: the invariants of design 4 and contract 5 under a machine of rules.

What is checked is in ``CoreHarness``: each plan, what each row reads, each message against the oracle, all blocks and
slots after each step, and that everything ends.
"""

from dataclasses import dataclass

from core_harness import CoreHarness, Sizes, make_add
from fake_model import VOCAB_SIZE, generate
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from engine_core import registry
from engine_core.step_cost import StepCost
from ipc.messages import Abort, Add, Finish, FinishReason
from ipc.params import BeamParams, SamplingParams

GATEWAYS = (b"one", b"two")
# Prompts begin alike, so that blocks are shared, and differ somewhere.
STEMS = ([1, 2, 3, 4, 5, 6, 7, 8, 9], [1, 2, 3, 4, 5, 0, 0, 0, 0], [5] * 9)


@st.composite
def sizes(draw: st.DrawFn) -> Sizes:
    """Engines that are too small: about one of the longest sequences fits, never many."""
    block_size, max_model_len = draw(st.integers(1, 4)), draw(st.integers(12, 24))
    num_host_blocks = draw(st.sampled_from([0, 1, 4, 12]))
    return Sizes(
        num_blocks=max(1, -(-max_model_len // block_size) + draw(st.integers(-1, 3))),
        block_size=block_size,
        max_num_seqs=draw(st.sampled_from([4, 3, 2, 1])),
        max_num_batched_tokens=draw(st.sampled_from([12, 9, 5, 2, 1])),
        max_model_len=max_model_len,
        policy=draw(st.sampled_from(registry.names("policy"))),
        enable_prefix_caching=draw(st.booleans()),
        overlap=draw(st.booleans()),
        num_host_blocks=num_host_blocks,
        has_disk=num_host_blocks > 0 and draw(st.booleans()),
        preemption_mode=draw(st.sampled_from(["swap", "recompute"])),
        step_cost=draw(st.sampled_from([None, StepCost(floor=0.0, row=0.01, sequence=0.0, context=0.001)])),
    )


@dataclass(frozen=True, slots=True)
class Wish:
    """A request before it has an id. ``shares``: how much of each choice an engine before this one has said."""

    prompt: list[int]
    params: SamplingParams
    n: int
    arrival_ns: int
    priority: int
    tenant: str
    deadline_ns: int
    cache_salt: str
    num_prompt_logprobs: int
    grammar: str | None
    shares: dict[int, float] | None
    beam: BeamParams | None

    def as_add(self, request_id: int) -> Add:
        """The message. A beam search has no grammar, has tokens to find, and is never resumed."""
        is_search = self.beam is not None and self.params.max_tokens > 0
        return make_add(
            request_id,
            self.prompt,
            self.params,
            n=self.n,
            arrival_ns=self.arrival_ns,
            priority=self.priority,
            tenant=self.tenant,
            weight=2.0 if self.tenant else 1.0,
            deadline_ns=self.deadline_ns,
            cache_salt=self.cache_salt,
            num_prompt_logprobs=self.num_prompt_logprobs,
            grammar=None if is_search else self.grammar,
            beam=self.beam if is_search else None,
            choices=None
            if self.shares is None or is_search
            else {c: self._said(c, share) for c, share in self.shares.items()},
        )

    def _said(self, choice: int, share: float) -> list[int]:
        said = generate(self.prompt, self.params, choice, self.grammar)
        num_tokens = len(said.token_ids) - (said.finish is not None)  # the last one ends it
        return said.token_ids[: int(share * max(0, num_tokens))]


wishes = st.builds(
    Wish,
    prompt=st.builds(
        lambda stem, length, tail: stem[:length] + tail,
        st.sampled_from(STEMS),
        st.integers(0, 9),
        st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=2),
    ),
    params=st.builds(
        SamplingParams,
        seed=st.integers(0, 2),
        max_tokens=st.sampled_from([9, 8, 5, 1, 0]),
        min_tokens=st.integers(0, 3),
        eos_token_ids=st.sampled_from([(), (), (), (2,)]),
        stop_token_ids=st.sampled_from([(), (), (), (4,), (2, 5)]),
        num_logprobs=st.sampled_from([-1, 0, 2]),
        logit_bias=st.sampled_from([*[()] * 11, ((0, 0.0),), ((0, 2.0),)]),
    ),
    n=st.sampled_from([1, 1, 2, 3, 5]),
    arrival_ns=st.integers(0, 20),
    priority=st.integers(0, 1),
    tenant=st.sampled_from(["", "t"]),
    deadline_ns=st.sampled_from([0, 0, 0, 1, 100, 300, 1000, 3000]),  # a step looks at the clock some times
    cache_salt=st.sampled_from(["", "", "", "s"]),
    num_prompt_logprobs=st.sampled_from([-1, -1, -1, 0]),
    grammar=st.sampled_from([None, None, None, "", "length=3", "breaks_at=2"]),
    beam=st.sampled_from([None, None, None, BeamParams(5), BeamParams(6, -1.0)]),
    shares=st.one_of(st.none(), st.none(), st.dictionaries(st.integers(0, 3), st.floats(0, 1), min_size=1, max_size=3)),
)


class SchedulerMachine(RuleBasedStateMachine):
    """Gateways at random; ``CoreHarness`` checks what comes of it."""

    def __init__(self) -> None:
        super().__init__()
        self.harness: CoreHarness | None = None
        self.num_requests = 0

    @property
    def engine(self) -> CoreHarness:
        assert self.harness is not None
        return self.harness

    @initialize(shape=sizes())
    def build(self, shape: Sizes) -> None:
        self.harness = CoreHarness(shape)

    @rule(batch=st.lists(wishes, min_size=1, max_size=4), owner=st.sampled_from(GATEWAYS))
    def add(self, batch: list[Wish], owner: bytes) -> None:
        for wish in batch:
            self.num_requests += 1
            self.engine.add(wish.as_add(self.num_requests), owner)

    @rule(count=st.integers(1, 6))
    def step(self, count: int) -> None:
        for _ in range(count):
            self.engine.step()

    @precondition(lambda self: self.harness is not None and self.harness.disk is not None)
    @rule(count=st.integers(1, 4), is_broken=st.sampled_from([False, False, False, True]))
    def work_on_disk(self, count: int, is_broken: bool) -> None:
        disk = self.engine.disk
        assert disk is not None
        disk.is_broken = is_broken
        for _ in range(min(count, len(disk.orders))):
            disk.work()
        disk.is_broken = False

    def _unfinished(self) -> list[tuple[bytes, int, int, int]]:
        """(gateway, request, choice, tokens received) of what was accepted and has not ended."""
        return [
            (owner, request_id, index, len(choice.token_ids))
            for owner, ledger in self.engine.ledgers.items()
            for request_id, entry in ledger.entries.items()
            for index, choice in entry.choices.items()
            if entry.is_accepted and not entry.is_ended and choice.finish is None
        ]

    @precondition(lambda self: any(num_received for *_, num_received in self._unfinished()))
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        """A stop string ended somewhere in what was received."""
        running = [found for found in self._unfinished() if found[-1]]
        owner, request_id, choice, num_received = data.draw(st.sampled_from(running))
        num_tokens = data.draw(st.integers(1, num_received))
        self.engine.want(Finish(request_id, choice, FinishReason.STOP, num_tokens), owner)
        self.engine.step()
        assert self.engine.ledgers[owner].entries[request_id].choices[choice].finish is FinishReason.STOP

    @precondition(lambda self: self._unfinished())
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        owner, request_id, *_ = data.draw(st.sampled_from(self._unfinished()))
        self.engine.want(Abort(request_id), owner)
        self.engine.step()
        assert self.engine.ledgers[owner].entries[request_id].is_ended

    @rule(owner=st.sampled_from(GATEWAYS))
    def lose_gateway(self, owner: bytes) -> None:
        self.engine.lose(owner)
        self.engine.step()
        requests = self.engine.scheduler.requests.values()
        assert all(request.is_finished for request in requests if request.owner == owner)

    @rule()
    def go_idle(self) -> None:
        self.engine.run_until_idle()

    def teardown(self) -> None:
        if self.harness is not None and not self.harness.is_broken:
            self.harness.run_until_idle()


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(
    max_examples=150,
    stateful_step_count=30,
    derandomize=True,
    report_multiple_bugs=False,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
