"""What becomes of requests when engines die under them: each goes on where it was, once, and ends once."""

import asyncio
from typing import Any

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from test_engine_client import READY, Connection, Engine, on_a_loop

from gateway.engine_client import OUTAGE_SECONDS, EngineClient
from gateway.engine_stream import ChoiceOutput, EngineStream, GenerationRequest
from gateway.tenant_usage import Bill, Usage
from ipc.codec import pack_ids, unpack_ids
from ipc.errors import EngineError
from ipc.messages import (
    Accepted,
    Add,
    EventKind,
    Finish,
    FinishReason,
    Output,
    Outputs,
    TokenLogprobs,
)
from ipc.params import BeamParams, SamplingParams


def adds(engine: Engine) -> dict[int, Add]:
    found = engine.connection.of(Add)
    assert len({add.request_id for add in found}) == len(found), "a request was given to one engine twice"
    return {add.request_id: add for add in found}


def lose(engine: Engine, *in_step: EngineStream, was_killed: bool = False) -> Any:
    return engine.client.lose({stream.request_id: True for stream in in_step}, was_killed=was_killed)


def taken(stream: EngineStream) -> list[ChoiceOutput]:
    return stream.take()


@on_a_loop
async def test_choices_go_on_from_their_tokens_and_ended_ones_do_not() -> None:
    engine = Engine()
    stream = engine.submit(n=3)
    engine.output(stream, [1, 2], 0)
    engine.output(stream, [3], 1, FinishReason.LENGTH)
    before = engine.connection
    lose(engine, stream)
    assert before.is_closed
    assert engine.client.is_ready
    assert not engine.client.is_connected
    engine.connect()
    add = adds(engine)[stream.request_id]
    assert [(choice, unpack_ids(ids)) for choice, ids in add.choices] == [(0, [1, 2]), (2, [])]
    assert (add.is_resumed, unpack_ids(add.prompt_ids), add.arrival_ns) == (True, [5, 6], 7)
    engine.output(stream, [4], 0, FinishReason.LENGTH)
    engine.output(stream, [5], 2, FinishReason.LENGTH)
    outputs = taken(stream)
    assert [(output.choice, output.token_ids) for output in outputs] == [(0, [1, 2]), (1, [3]), (0, [4]), (2, [5])]
    assert engine.client.num_in_flight == 0


@on_a_loop
async def test_requests_that_come_meanwhile_begin_with_the_next_engine() -> None:
    engine = Engine()
    lose(engine)
    stream = engine.submit()
    gone = engine.submit()
    gone.abort()
    engine.connect()
    assert {request_id: add.is_resumed for request_id, add in adds(engine).items()} == {stream.request_id: False}
    engine.connection.receive(Accepted(stream.request_id))
    await stream.accepted()


@on_a_loop
async def test_the_order_of_arrival_is_kept() -> None:
    engine = Engine()
    late, early = (
        engine.client.submit(GenerationRequest("tiny", [1], SamplingParams(), arrival_ns=arrival)) for arrival in (9, 3)
    )
    lose(engine)
    engine.connect()
    assert [add.request_id for add in engine.connection.of(Add)] == [early.request_id, late.request_id]


@pytest.mark.parametrize("is_told_in_time", [True, False])
def test_a_choice_that_a_stop_string_ended_is_over(is_told_in_time: bool) -> None:
    async def test() -> None:
        engine = Engine()
        stream = engine.submit(n=2)
        engine.output(stream, [1, 2, 3], 1)
        if is_told_in_time:
            stream.finish_choice(1, 2)
            assert engine.connection.of(Finish) == [Finish(stream.request_id, 1, FinishReason.STOP, 2)]
            lose(engine, stream)
        else:
            lose(engine, stream)
            stream.finish_choice(1, 2)
        assert [(output.choice, output.finish) for output in taken(stream)] == [(1, None), (1, FinishReason.STOP)]
        engine.connect()
        assert [choice for choice, _ in adds(engine)[stream.request_id].choices] == [0]
        assert not engine.connection.of(Finish)

    asyncio.run(asyncio.wait_for(test(), 10))


@on_a_loop
async def test_a_request_that_is_over_that_way_is_sent_to_nobody() -> None:
    engine = Engine()
    stream = engine.submit()
    engine.output(stream, [1])
    stream.finish_choice(0, 1)
    lose(engine, stream)
    assert stream.is_finished
    assert engine.client.num_in_flight == 0
    engine.connect()
    assert not adds(engine)


@on_a_loop
async def test_one_that_ends_that_way_while_no_engine_is_there() -> None:
    engine = Engine()
    suspect, other = engine.submit(), engine.submit()
    engine.output(other, [1])
    lose(engine, suspect)
    other.finish_choice(0, 1)
    suspect.finish_choice(0, 0)
    assert other.is_finished
    assert suspect.is_finished
    assert engine.client.num_in_flight == 0
    engine.connect()
    assert not adds(engine)


@on_a_loop
async def test_what_the_first_engine_said_once_is_not_asked_again() -> None:
    """Prompt log-probabilities, and how much of the prompt was cached."""
    engine = Engine()
    request = GenerationRequest("tiny", [5, 6], SamplingParams(), arrival_ns=7, num_prompt_logprobs=2)
    known, unknown = engine.client.submit(request), engine.client.submit(request)
    logprobs = TokenLogprobs(0, b"", b"")
    first = Output(known.request_id, 0, pack_ids([1]), num_cached_tokens=16, prompt_logprobs=logprobs)
    engine.connection.receive(Outputs(1, 9, (first,)))
    lose(engine)
    engine.connect()
    found = adds(engine)
    assert found[known.request_id].num_prompt_logprobs == -1
    assert found[unknown.request_id].num_prompt_logprobs == 2
    events = ((int(EventKind.ADMITTED), 5, 0), (int(EventKind.CHUNK), 6, 3))
    second = Output(known.request_id, 0, pack_ids([2]), num_cached_tokens=48, events=events)
    engine.connection.receive(Outputs(1, 9, (second,)))
    outputs = taken(known)
    assert [output.num_cached_tokens for output in outputs] == [16, 16]
    assert outputs[1].events == ((int(EventKind.RESUMED), 5, 0), (int(EventKind.CHUNK), 6, 3))


@on_a_loop
async def test_an_engine_that_computes_differently_continues_nothing() -> None:
    engine = Engine()
    begun, waiting = engine.submit(), engine.submit()
    engine.output(begun, [1])
    lose(engine)
    engine.connect(is_ready=False)
    engine.connection.receive(msgspec.structs.replace(READY, numerics_id="others"))
    taken(begun)
    with pytest.raises(EngineError, match="computes differently"):
        begun.take()
    assert adds(engine).keys() == {waiting.request_id}


@on_a_loop
async def test_a_request_that_kills_its_engine_each_time_fails_alone() -> None:
    engine = Engine()
    poison, others = engine.submit(), [engine.submit() for _ in range(3)]
    for stream in others:
        engine.output(stream, [1])
    assert lose(engine, poison, *others).condemned is None
    engine.connect()
    assert adds(engine).keys() == {stream.request_id for stream in others}, "the suspect waits until they are back"
    for stream in others:
        engine.output(stream, [2])
    assert poison.request_id in adds(engine)
    verdict = lose(engine, poison, *others)
    assert (verdict.condemned, verdict.is_narrowed) == (poison.request_id, True)
    with pytest.raises(EngineError) as caught:
        poison.take()
    assert caught.value.code == "engine_killed"
    engine.connect()
    assert adds(engine).keys() == {stream.request_id for stream in others}
    for stream in others:
        engine.output(stream, [3], finish=FinishReason.LENGTH)
        assert [output.token_ids for output in taken(stream)] == [[1], [2], [3]]


@on_a_loop
async def test_a_beam_search_that_was_under_way_is_not_suspected() -> None:
    """However often: it says nothing before its end."""
    engine = Engine()
    request = GenerationRequest("tiny", [5, 6], SamplingParams(max_tokens=9), arrival_ns=7, beam=BeamParams(2))
    search = engine.client.submit(request)
    for _ in range(5):
        assert lose(engine, search).condemned is None
        engine.connect()
        assert search.request_id in adds(engine)
    new = {search.request_id: False}
    assert engine.client.lose(new, was_killed=False).condemned is None
    engine.connect()
    assert engine.client.lose(new, was_killed=False).condemned == search.request_id


@on_a_loop
async def test_a_suspect_that_its_client_leaves_holds_nobody_up() -> None:
    engine = Engine()
    first, second = engine.submit(), engine.submit()
    lose(engine, first, second)
    engine.connect()
    assert adds(engine).keys() == {first.request_id}
    first.abort()
    assert second.request_id in adds(engine)


@on_a_loop
async def test_when_no_engine_comes_any_more_everybody_is_told_once() -> None:
    engine = Engine()
    stream = engine.submit()
    lose(engine, stream)
    waiting = engine.submit()
    engine.client.disconnect(EngineError("the engine died", code="engine_died"))
    engine.client.disconnect(EngineError("the server is shutting down", code="shutting_down", status=503))
    for one in (stream, waiting):
        with pytest.raises(EngineError) as caught:
            one.take()
        assert caught.value.code == "engine_died"
    assert not engine.client.is_ready
    with pytest.raises(EngineError) as caught:
        engine.submit()
    assert (caught.value.status, caught.value.code) == (503, "engine_died")


@on_a_loop
async def test_an_outage_is_told_after_a_while_and_ends_with_the_next_engine() -> None:
    """Counted from the end of the last one that served; requests are taken all the while."""
    now = 1_000_000_000
    engine = Engine(clock=lambda: now)
    engine.client.check_outage()
    lose(engine)
    engine.client.check_outage()
    now += round(OUTAGE_SECONDS * 1e9) // 2
    engine.connect(is_ready=False)
    lose(engine)  # it died before it served
    now += round(OUTAGE_SECONDS * 1e9) // 2
    with pytest.raises(EngineError, match="no engine for 10 s: it died") as caught:
        engine.client.check_outage()
    assert (caught.value.status, caught.value.code) == (503, "no_engine")
    engine.client.explain_outage("no memory")
    with pytest.raises(EngineError, match="no memory"):
        engine.client.check_outage()
    engine.connect(is_ready=False)
    with pytest.raises(EngineError, match="another one is starting"):
        engine.client.check_outage()
    engine.submit()
    engine.connection.receive(READY)
    engine.client.check_outage()
    engine.client.disconnect(EngineError("the engine died", code="engine_died"))
    with pytest.raises(EngineError, match="the engine died"):
        engine.client.check_outage()


class Mortal(RuleBasedStateMachine):
    """Engines that come and go under requests of two choices; token k of a choice is k + 1."""

    @initialize()
    def begin(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.now_ns = 1
        self.account, self.num_told = Usage(), 0
        self.client = EngineClient(self.loop, lambda _: None, lambda _: None, lambda: self.now_ns)
        self.streams: list[EngineStream] = []
        self.got: dict[tuple[int, int], list[int]] = {}
        self.ends: dict[tuple[int, int], int] = {}
        self.serve()

    def teardown(self) -> None:
        self.loop.close()

    def serve(self) -> None:
        self.connection = Connection()
        self.client.connect(self.connection)  # type: ignore[arg-type]
        self.connection.receive(READY)
        assert not any(0 < add.deadline_ns <= self.now_ns for add in self.connection.of(Add)), "it is too late for that"

    def tell(self, stream: EngineStream, choice: int, finish: bool) -> None:
        """The engine has a token. What a choice has cost it says with the last one."""
        tokens, last = pack_ids([len(stream.choices[choice].token_ids) + 1]), FinishReason.LENGTH if finish else None
        self.num_told += finish
        output = Output(stream.request_id, choice, tokens, finish=last, device_ns=10 * finish, kv_block_ns=300 * finish)
        self.connection.receive(Outputs(1, 9, (output,)))

    @property
    def running(self) -> list[EngineStream]:
        """What the present engine was given and has not ended."""
        given = {add.request_id for add in self.connection.of(Add)}
        return [stream for stream in self.streams if stream.request_id in given and not stream.is_finished]

    def read(self) -> None:
        for stream in self.streams:
            for output in stream.take() if stream._failure is None else ():
                key = (stream.request_id, output.choice)
                self.got.setdefault(key, []).extend(output.token_ids)
                self.ends[key] = self.ends.get(key, 0) + (output.finish is not None)

    @rule(patience=st.sampled_from([0, 0, 1, 2, 5]))
    def submit(self, patience: int) -> None:
        deadline_ns = patience and self.now_ns + patience
        bill = Bill(self.account)
        request = GenerationRequest("m", [1], SamplingParams(), arrival_ns=1, n=2, deadline_ns=deadline_ns, bill=bill)
        self.streams.append(self.client.submit(request))

    @rule()
    def time_passes(self) -> None:
        """The alarm rings in time."""
        self.now_ns += 1
        num_sent = len(self.connection.of(Add))
        self.client._end_late()
        sent = self.connection.of(Add)[num_sent:]
        assert not any(0 < add.deadline_ns <= self.now_ns for add in sent), "it is too late for that"

    @rule(pick=st.randoms(use_true_random=False), finish=st.booleans())
    def output(self, pick: Any, finish: bool) -> None:
        if not (running := self.running):
            return
        stream = pick.choice(running)
        choice = pick.choice([index for index, one in stream.choices.items() if not one.is_finished])
        self.tell(stream, choice, finish)

    @rule(pick=st.randoms(use_true_random=False))
    def stop(self, pick: Any) -> None:
        if running := self.running:
            stream, choice = pick.choice(running), pick.randrange(2)
            stream.finish_choice(choice, len(stream.choices[choice].token_ids))

    @rule(pick=st.randoms(use_true_random=False))
    def leave(self, pick: Any) -> None:
        if self.streams:
            pick.choice(self.streams).abort()

    @rule(
        pick=st.randoms(use_true_random=False),
        was_killed=st.booleans(),
        stops=st.booleans(),
        patience=st.integers(0, 3),
        pause=st.integers(0, 3),
    )
    def crash(self, pick: Any, was_killed: bool, stops: bool, patience: int, pause: int) -> None:
        """Stop strings may be found in what it sent when it is gone, requests come, and deadlines pass."""
        in_step = [stream for stream in self.running if pick.random() < 0.5]
        self.client.lose({stream.request_id: pick.random() < 0.5 for stream in in_step}, was_killed=was_killed)
        if stops and self.streams:
            stream = pick.choice(self.streams)
            stream.finish_choice(pick.randrange(2), 0)
        if patience:
            self.submit(patience)
        self.now_ns += pause  # and the next engine comes before the alarm
        self.serve()

    @invariant()
    def nothing_is_lost_or_twice(self) -> None:
        if not hasattr(self, "streams"):
            return
        self.read()
        for add in self.connection.of(Add):
            assert add.choices, "nothing is left to do"
        assert len({add.request_id for add in self.connection.of(Add)}) == len(self.connection.of(Add))
        for tokens in self.got.values():
            assert tokens == list(range(1, len(tokens) + 1))
        assert all(count <= 1 for count in self.ends.values())
        found = (self.account.device_ns, self.account.kv_block_ns)
        assert found == (10 * self.num_told, 300 * self.num_told), "each choice is charged once, by who ended it"

    @rule()
    def everybody_is_served_in_the_end(self) -> None:
        for _ in range(10 + 4 * len(self.streams)):
            for stream in self.running:
                for choice, one in stream.choices.items():
                    if not one.is_finished:
                        self.tell(stream, choice, finish=True)
        assert self.client.num_in_flight == 0


TestMortal = Mortal.TestCase
TestMortal.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
