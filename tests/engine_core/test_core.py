"""The busy loop: overlap changes nothing that a gateway sees, messages are answered, errors come out."""

from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import pytest
from core_harness import GATEWAY, CoreHarness, FakeChannel, Sizes, make_add
from fake_device import UNMASKED
from fake_model import read_mask
from msgspec import structs

from engine_core.channel import Inbound, UnfitRequest
from engine_core.core import IDLE_SECONDS, EngineCore
from engine_core.statistics import StatsReporter, snapshot
from engine_core.step import ModelRunnerOutput, SchedulerOutput
from ipc.codec import pack_ids, unpack_ids
from ipc.messages import (
    Abort,
    Accepted,
    Add,
    Failed,
    Finish,
    FinishReason,
    Outputs,
    Stats,
    ToGateway,
    WaitReason,
)
from ipc.params import SamplingParams

both = pytest.mark.parametrize("overlap", [True, False])
OTHER = b"other gateway"


def workload() -> list[Add]:
    """A bit of everything, on more sequences than may run."""
    return [
        make_add(1, [1, 2, 3, 4, 5, 6, 7], SamplingParams(max_tokens=9, seed=1), n=3),
        make_add(2, [1, 2, 3, 4, 5, 6, 8], SamplingParams(max_tokens=9, eos_token_ids=(2, 3), num_logprobs=1)),
        make_add(3, [5] * 9, SamplingParams(max_tokens=8, stop_token_ids=(4, 5), min_tokens=2), num_prompt_logprobs=0),
        make_add(4, [1, 2, 3], SamplingParams(max_tokens=9, seed=3), n=2, grammar=""),
        make_add(5, [9, 9, 9], SamplingParams(max_tokens=0), num_prompt_logprobs=1),
        make_add(6, [7], SamplingParams(max_tokens=12, logit_bias=((0, 3.0),))),
        make_add(7, [1, 2, 3, 4, 5, 6, 7, 8, 9], SamplingParams(max_tokens=20)),
    ]


def contents(messages: list[tuple[bytes, ToGateway]]) -> dict[tuple[int, int], list[object]]:
    """What was said about each choice, without times and the grouping into messages."""
    found: dict[tuple[int, int], list[object]] = {}
    for _, message in messages:
        if isinstance(message, Outputs):
            for output in message.outputs:
                said = found.setdefault((output.request_id, output.choice), [])
                said.append(structs.replace(output, events=(), num_cached_tokens=0, device_ns=0, kv_block_ns=0))
        elif isinstance(message, Failed):
            found.setdefault((message.request_id, -1), []).append(message)
    return found


@pytest.mark.parametrize("sizes", [Sizes(), Sizes(num_blocks=12, max_num_batched_tokens=5), Sizes(max_num_seqs=1)])
def test_overlap_changes_nothing_that_is_said(sizes: Sizes) -> None:
    said = []
    for overlap in (True, False):
        engine = CoreHarness(replace(sizes, overlap=overlap))
        for add in workload():
            engine.add(add)
        said.append(contents(engine.run_until_idle()))
    assert said[0] == said[1]
    assert len(said[0]) == 11


def test_overlap_launches_the_next_step_before_the_last_is_known() -> None:
    engine = CoreHarness(Sizes(overlap=True))
    engine.add(make_add(1, [1, 2, 3], SamplingParams(max_tokens=4)))
    assert [type(message) for _, message in engine.step()] == [Accepted]
    assert len(engine.plans) == 1
    assert len(engine.device.queue) == 2, "the device has not even begun"
    sent = engine.step()
    assert len(engine.plans) == 2
    assert [len(message.outputs) for _, message in sent if isinstance(message, Outputs)] == [1]
    engine.run_until_idle()


@both
def test_one_message_a_step_and_gateway(overlap: bool) -> None:
    engine = CoreHarness(Sizes(overlap=overlap))
    for request_id in range(4):
        add = make_add(request_id, [request_id], SamplingParams(max_tokens=5), arrival_ns=0)
        engine.add(add, GATEWAY if request_id % 2 else OTHER)
    times = []
    while not engine.plans or not engine.core.is_idle:
        outputs = [(owner, message) for owner, message in engine.step() if isinstance(message, Outputs)]
        assert len({owner for owner, _ in outputs}) == len(outputs)
        for _, message in outputs:
            assert message.incarnation == 7
            assert [len(unpack_ids(output.token_ids)) for output in message.outputs] == [1, 1]
            times.append(message.time_ns)
    assert times
    assert all(before <= after for before, after in pairwise(times))


# ---- grammar


@both
def test_rows_with_a_grammar_are_drawn_under_the_mask_of_all_tokens_before(overlap: bool) -> None:
    engine = CoreHarness(Sizes(overlap=overlap))
    engine.add(make_add(1, [1, 2, 3], SamplingParams(max_tokens=5), grammar=""))
    engine.add(make_add(2, [4, 5, 6], SamplingParams(max_tokens=5)))
    engine.run_until_idle()
    masks = [read_mask(mask) for seen in engine.device.masks_seen for mask in seen.values()]
    assert masks == [list(range(place % 2, 12, 2)) for place in range(5)]


def test_a_row_that_ended_in_the_commit_before_needs_no_mask() -> None:
    """Overlap has launched one row too many: it is drawn without a mask and nobody hears of it."""
    engine = CoreHarness(Sizes(overlap=True))
    engine.add(make_add(1, [1, 2, 3], SamplingParams(max_tokens=9), grammar=""))
    engine.run_until_idle()
    said = engine.ledgers[GATEWAY].entries[1].choices[0].token_ids
    engine = CoreHarness(Sizes(overlap=True))
    params = SamplingParams(max_tokens=9, eos_token_ids=(said[2],), min_tokens=2)
    engine.add(make_add(1, [1, 2, 3], params, grammar=""))
    engine.run_until_idle()
    assert engine.device.masks_seen[-1] == {}
    assert engine.ledgers[GATEWAY].entries[1].choices[0].token_ids == said[:3]
    assert UNMASKED in [token_id for row in engine.device.tokens for token_id in row]


def waiting(engine: CoreHarness) -> int:
    """Sequences whose grammar is being compiled, as the statistics say."""
    return dict(snapshot(engine.core, 7).waiting_by_reason).get(WaitReason.GRAMMAR, 0)


@both
def test_a_complete_grammar_ends_its_sequence_however_short(overlap: bool) -> None:
    engine = CoreHarness(Sizes(overlap=overlap))
    engine.add(make_add(1, [1, 2, 3], SamplingParams(max_tokens=9, min_tokens=8), n=2, grammar="length=3"))
    engine.add(make_add(2, [1, 2, 3], SamplingParams(max_tokens=3), grammar="length=3"))
    engine.run_until_idle()
    for choice in (*engine.ledgers[GATEWAY].entries[1].choices.values(), engine.ledgers[GATEWAY].entries[2].choices[0]):
        assert (len(choice.token_ids), choice.finish) == (3, FinishReason.STOP)


@both
def test_a_grammar_that_cannot_go_on_fails_its_request_alone(overlap: bool) -> None:
    engine = CoreHarness(Sizes(overlap=overlap))
    engine.add(make_add(1, [1, 2, 3], SamplingParams(max_tokens=9), n=2, grammar="breaks_at=2"))
    engine.add(make_add(2, [1, 2, 4], SamplingParams(max_tokens=9)))
    engine.run_until_idle()
    assert engine.ledgers[GATEWAY].entries[1].failure == "grammar_failed"
    assert engine.ledgers[GATEWAY].entries[2].choices[0].finish is FinishReason.LENGTH


def test_a_request_waits_for_its_grammar_and_others_do_not() -> None:
    engine = CoreHarness(Sizes())
    engine.grammars.is_slow = True
    engine.add(make_add(1, [1, 2, 3], SamplingParams(max_tokens=4), n=2, grammar=""))
    engine.add(make_add(2, [1, 2, 4], SamplingParams(max_tokens=4)))
    for _ in range(8):
        engine.step()
    first, second = (engine.ledgers[GATEWAY].entries[number] for number in (1, 2))
    assert (first.is_accepted, second.is_ended) == (False, True)
    assert waiting(engine) == 2
    assert not engine.core.is_idle
    engine.grammars.finish()
    engine.run_until_idle()
    assert waiting(engine) == 0
    assert first.is_ended
    assert first.choices[0].story.startswith("qbga")


def test_a_broken_grammar_is_refused_before_it_is_accepted() -> None:
    engine = CoreHarness(Sizes())
    engine.add(make_add(1, [1, 2, 3], grammar="broken"))
    engine.run_until_idle()
    entry = engine.ledgers[GATEWAY].entries[1]
    assert (entry.is_accepted, entry.failure) == (False, "invalid_grammar")


def test_what_is_aborted_while_its_grammar_is_compiled_ends_once() -> None:
    engine = CoreHarness(Sizes())
    engine.grammars.is_slow = True
    engine.add(make_add(1, [1, 2, 3], grammar=""))
    engine.add(make_add(2, [1, 2, 3], grammar=""), owner=OTHER)
    engine.step()
    engine.want(Abort(1))
    engine.step()
    assert engine.ledgers[GATEWAY].entries[1].failure == "aborted"
    engine.lose(OTHER)
    engine.step()
    engine.grammars.finish()
    assert engine.run_until_idle() == []
    assert engine.plans == []


def test_an_id_whose_grammar_is_being_compiled_is_in_use() -> None:
    engine = CoreHarness(Sizes())
    engine.grammars.is_slow = True
    engine.add(make_add(1, [1, 2, 3], SamplingParams(max_tokens=2), grammar=""))
    engine.step()
    engine.channel.inbox.append((OTHER, engine.read(OTHER, make_add(1, [4, 5]))))
    assert [(owner, message.code) for owner, message in engine.step() if isinstance(message, Failed)] == [
        (OTHER, "duplicate_id")
    ]
    engine.grammars.finish()
    engine.run_until_idle()


@both
def test_a_deadline_passes_while_the_grammar_is_compiled(overlap: bool) -> None:
    """The request ends then, and what is compiled for it later is for nobody. Others wait on."""
    engine = CoreHarness(Sizes(overlap=overlap))
    engine.grammars.is_slow = True
    engine.add(make_add(1, [1, 2, 3], SamplingParams(max_tokens=4), n=2, grammar="", deadline_ns=200))
    engine.add(make_add(2, [1, 2, 3], choices={0: [], 3: []}, grammar="", deadline_ns=200), owner=OTHER)
    engine.add(make_add(3, [1, 2, 4], SamplingParams(max_tokens=4), grammar="", deadline_ns=10**9))
    engine.add(make_add(4, [1, 2, 5], SamplingParams(max_tokens=4), grammar=""))
    engine.step()
    assert waiting(engine) == 6
    sent = []
    while waiting(engine) == 6:
        sent += engine.step()
    assert waiting(engine) == 2
    for owner, request_id in ((GATEWAY, 1), (OTHER, 2)):
        entry = engine.ledgers[owner].entries[request_id]
        assert entry.is_accepted
        assert {choice.finish for choice in entry.choices.values()} == {FinishReason.DEADLINE}
        assert {choice.story for choice in entry.choices.values()} == {"qb"}
        assert [type(message) for to, message in sent if to == owner] == [Accepted, Outputs]
    assert engine.plans == []
    engine.grammars.finish()
    engine.run_until_idle()
    for request_id in (3, 4):
        assert engine.ledgers[GATEWAY].entries[request_id].choices[0].finish is FinishReason.LENGTH


@both
def test_a_deadline_may_pass_before_or_after_the_grammar_is_there(overlap: bool) -> None:
    """Wherever it falls, each choice ends once: the ledger sees to that."""
    ends = set()
    for deadline_ns in range(1, 160, 3):
        engine = CoreHarness(Sizes(overlap=overlap))
        engine.grammars.is_slow = True
        engine.add(make_add(1, [1, 2, 3], SamplingParams(max_tokens=4), n=2, grammar="", deadline_ns=deadline_ns))
        for _ in range(3):
            engine.step()
        if deadline_ns % 2 and not engine.ledgers[GATEWAY].entries[1].is_ended:
            engine.want(Abort(1))
        engine.grammars.finish()
        engine.run_until_idle()
        entry = engine.ledgers[GATEWAY].entries[1]
        ends.add((entry.failure, *(choice.finish for choice in entry.choices.values())))
        assert len(engine.core._compiling) == 0
    late, done = FinishReason.DEADLINE, FinishReason.LENGTH
    assert ends >= {(None, late, late), (None, done, done), ("aborted", None, None)}


def test_a_stop_string_is_found_while_the_grammar_of_a_resumed_request_is_compiled() -> None:
    """In what the engine before this one had sent."""
    engine = CoreHarness(Sizes())
    engine.grammars.is_slow = True
    add = make_add(1, [1, 2, 3], SamplingParams(max_tokens=6), choices={0: [4, 5], 2: [4, 5]}, grammar="")
    engine.channel.inbox.append((GATEWAY, engine.read(GATEWAY, add)))
    engine.core.step()
    engine.channel.inbox += [(GATEWAY, Finish(1, choice, FinishReason.STOP, 1)) for choice in (0, 0, 1)]
    engine.core.step()
    (over,) = contents(engine.channel.sent).items()
    assert over[0] == (1, 0)
    assert [output.finish for output in over[1]] == [FinishReason.STOP]  # type: ignore[attr-defined]
    assert waiting(engine) == 1
    engine.channel.inbox.append((GATEWAY, Finish(1, 2, FinishReason.STOP, 1)))
    engine.core.step()
    assert engine.core.is_idle
    engine.grammars.finish()
    engine.core.step()
    assert engine.core.is_idle
    assert engine.plans == []


@dataclass
class Naps:
    """A channel that tells how long the loop would have slept."""

    channel: FakeChannel
    seconds: list[float] = field(default_factory=list)

    def receive(self, *, timeout: float | None) -> list[Inbound]:
        assert timeout is not None
        self.seconds.append(timeout)
        return self.channel.receive(timeout=0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.channel, name)


def test_an_idle_loop_wakes_for_the_deadline_of_a_grammar() -> None:
    engine = CoreHarness(Sizes())
    engine.grammars.is_slow = True
    naps = engine.core.channel = Naps(engine.channel)
    engine.core.step(block=True)
    engine.add(make_add(1, [1, 2, 3], grammar="", deadline_ns=300_000_000))
    engine.add(make_add(2, [1, 2, 3], grammar="", deadline_ns=5_000_000_000))
    engine.core.step(block=True)
    engine.core.step(block=True)
    engine.want(Abort(1))
    for _ in range(2):
        engine.core.step(block=True)
    engine.want(Abort(2))
    for _ in range(2):
        engine.core.step(block=True)
    assert naps.seconds[:2] == [IDLE_SECONDS, IDLE_SECONDS]
    assert [pytest.approx(nap, abs=1e-6) for nap in naps.seconds[2:4]] == [0.3, 0.3]
    assert naps.seconds[4:] == [IDLE_SECONDS, IDLE_SECONDS, IDLE_SECONDS]


# ---- messages


def test_a_request_id_that_is_in_use_is_refused_and_the_first_goes_on() -> None:
    engine = CoreHarness(Sizes())
    engine.add(make_add(1, [1, 2, 3], SamplingParams(max_tokens=5)))
    engine.step()
    engine.channel.inbox.append((OTHER, engine.read(OTHER, make_add(1, [4]))))
    engine.core.step()
    failures = [(owner, message.code) for owner, message in engine.channel.sent if isinstance(message, Failed)]
    assert failures == [(OTHER, "duplicate_id")]
    engine.channel.sent = [item for item in engine.channel.sent if item[0] != OTHER]
    for owner, message in engine.channel.sent:
        engine.ledgers[owner].take(message)
    engine.channel.sent = []
    engine.run_until_idle()


def test_an_id_may_come_again_after_its_end() -> None:
    engine = CoreHarness(Sizes())
    for _ in range(2):
        engine.add(make_add(1, [1, 2, 3], SamplingParams(max_tokens=2)))
        engine.run_until_idle()
        engine.ledgers.clear()


def test_a_request_that_cannot_be_one_fails() -> None:
    engine = CoreHarness(Sizes())
    engine.channel.inbox.append((GATEWAY, UnfitRequest(5, "because")))
    engine.core.step()
    assert engine.channel.sent == [(GATEWAY, Failed(5, -1, "invalid", "because"))]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"prompt_ids": pack_ids([12])}, "outside the vocabulary"),
        ({"prompt_ids": b"\0\0\0\0\0"}, "end in the middle"),
        ({"choices": ((0, b"\0"),)}, "end in the middle"),
        ({"choices": ((0, pack_ids([99])),)}, "outside the vocabulary"),
        ({"choices": ()}, "missing or repeated"),
        ({"choices": ((0, b""), (0, b""))}, "missing or repeated"),
        ({"params": SamplingParams(allowed_token_ids=(12,))}, "outside the vocabulary"),
        ({"params": SamplingParams(logit_bias=((12, 1.0),))}, "outside the vocabulary"),
        ({"params": SamplingParams(stop_token_ids=(12,))}, "outside the vocabulary"),
        ({"params": SamplingParams(eos_token_ids=(-1,))}, "outside the vocabulary"),
        ({"params": SamplingParams(bad_words=((1, 12),))}, "outside the vocabulary"),
        ({"adapter": "a"}, "no adapters"),
        ({"weight": 0.0}, "a weight of 0.0 is no share"),
        ({"weight": float("nan")}, "a weight of nan is no share"),
    ],
)
def test_an_add_that_would_hurt_the_engine_is_unfit(change: dict[str, object], problem: str) -> None:
    engine = CoreHarness(Sizes())
    add = structs.replace(make_add(3, [1, 2]), **change)
    found = engine.read(GATEWAY, add)
    assert isinstance(found, UnfitRequest)
    assert found.request_id == 3
    assert problem in found.problem


@both
def test_a_gateway_that_is_gone_leaves_nothing_behind(overlap: bool) -> None:
    engine = CoreHarness(Sizes(overlap=overlap, max_num_seqs=3))
    for request_id in range(6):
        add = make_add(request_id, [1, 2, request_id], SamplingParams(max_tokens=9), n=2)
        engine.add(add, GATEWAY if request_id % 2 else OTHER)
    for _ in range(3):
        engine.step()
    engine.lose(OTHER)
    sent = engine.run_until_idle()
    assert {owner for owner, _ in sent} == {GATEWAY}
    assert all(entry.failure is None for entry in engine.ledgers[GATEWAY].entries.values())


def test_what_is_unknown_is_no_error() -> None:
    engine = CoreHarness(Sizes())
    engine.channel.inbox += [(GATEWAY, Abort(77)), (GATEWAY, Finish(77, 0, FinishReason.STOP, 1))]
    assert engine.step() == []
    engine.add(make_add(1, [1, 2], SamplingParams(max_tokens=4)))
    engine.step()
    engine.channel.inbox.append((GATEWAY, Finish(1, 5, FinishReason.STOP, 1)))  # it has no such choice
    engine.run_until_idle()


@both
def test_a_drained_engine_ends_when_the_last_request_does(overlap: bool) -> None:
    engine = CoreHarness(Sizes(overlap=overlap))
    engine.add(make_add(1, [1, 2, 3], SamplingParams(max_tokens=5)))
    engine.drain()
    engine.add(make_add(2, [1, 2, 3]))
    loops: list[EngineCore] = []
    engine.core.run(loops.append)
    for owner, message in engine.channel.sent:
        engine.ledgers[owner].take(message)
    entries = engine.ledgers[GATEWAY].entries
    assert entries[1].choices[0].finish is FinishReason.LENGTH
    assert entries[2].failure == "draining"
    assert engine.device.is_shut_down
    assert loops[-1].is_idle
    assert engine.core.num_loops == len(loops)


def test_an_idle_engine_that_is_drained_ends_at_once() -> None:
    engine = CoreHarness(Sizes())
    engine.drain()
    engine.core.run(lambda core: None)
    assert engine.device.is_shut_down
    assert engine.plans == []


# ---- errors


class BrokenDevice:
    """Fails where it is told to."""

    def __init__(self, *, at_launch: bool) -> None:
        self._at_launch = at_launch

    def launch(self, plan: SchedulerOutput) -> "BrokenDevice":
        if self._at_launch:
            raise RuntimeError("launch failed")
        return self

    def launch_sample(self, handle: object, masks: dict[int, bytes]) -> None:
        raise AssertionError("nothing here has a mask")

    def result(self) -> ModelRunnerOutput:
        raise RuntimeError("step failed")

    def shutdown(self) -> None:
        raise AssertionError("nobody shuts down what is broken")


@both
@pytest.mark.parametrize("at_launch", [True, False])
def test_what_the_executor_raises_ends_the_loop(overlap: bool, at_launch: bool) -> None:
    engine = CoreHarness(Sizes(overlap=overlap))
    engine.core.executor = BrokenDevice(at_launch=at_launch)
    engine.add(make_add(1, [1, 2, 3]))
    with pytest.raises(RuntimeError, match="launch failed" if at_launch else "step failed"):
        engine.core.run(lambda core: None)


# ---- statistics


def test_counters_and_gauges_tell_what_was_done() -> None:
    engine = CoreHarness(Sizes(overlap=False, max_num_seqs=1))
    engine.add(make_add(1, [1, 2, 3, 4, 5], SamplingParams(max_tokens=3)))
    engine.add(make_add(2, [1, 2, 3, 4, 5], SamplingParams(max_tokens=3)))
    engine.step()
    busy = snapshot(engine.core, 7)
    assert (busy.num_running, busy.num_waiting, busy.num_blocks - busy.num_free_blocks) == (1, 1, 2)
    engine.run_until_idle()
    idle = snapshot(engine.core, 7)
    assert (idle.num_running, idle.num_waiting, idle.num_free_blocks) == (0, 0, idle.num_blocks)
    assert (idle.prompt_tokens, idle.generation_tokens) == (10, 6)
    assert (idle.prefix_cache_queries, idle.prefix_cache_hits, idle.num_cached_blocks) == (10, 4, 1)
    assert (idle.steps, idle.step_tokens_sum) == (6, 5 + 2 + 1 + 2)
    assert sum(idle.step_tokens) == 6
    assert idle.step_tokens[0] == 5
    assert idle.waiting_by_reason == ()


def test_statistics_are_sent_on_going_idle() -> None:
    """Everybody is gone: the gauges must not stay where they were."""
    engine = CoreHarness(Sizes())
    reporter = StatsReporter(engine.channel, 7)
    for request_id in range(6):
        engine.add(make_add(request_id, [1, 2, 3], SamplingParams(max_tokens=50)))
    for _ in range(3):
        engine.step()
        reporter.on_step(engine.core)
    engine.lose(GATEWAY)
    while not engine.core.is_idle:
        engine.core.step()
        reporter.on_step(engine.core)
    last = engine.channel.broadcasts[-1]
    assert isinstance(last, Stats)
    assert (last.num_running, last.num_waiting, last.num_free_blocks) == (0, 0, last.num_blocks)
    assert last.generation_tokens > 0


@both
def test_the_last_output_says_what_a_choice_has_cost(overlap: bool) -> None:
    engine = CoreHarness(Sizes(overlap=overlap))
    engine.add(make_add(1, [1, 2, 3, 4, 5, 6, 7], SamplingParams(max_tokens=9), n=2))
    engine.add(make_add(2, [5, 5], SamplingParams(max_tokens=20)))
    messages = [message for _, message in engine.run_until_idle() if isinstance(message, Outputs)]
    outputs = [output for message in messages for output in message.outputs]
    for output in outputs:
        assert (output.device_ns > 0) == (output.kv_block_ns > 0) == (output.finish is not None)
    assert sum(output.finish is not None for output in outputs) == 3
