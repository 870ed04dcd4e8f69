"""A deadline that passes while no engine has the request: it ends then, once, and no engine hears of it any more."""

import asyncio
import itertools
import time
from typing import Any

import pytest
from test_engine_client import Engine, on_a_loop
from test_engine_client_resume import adds, lose, taken

from gateway.engine_stream import EngineStream, GenerationRequest
from gateway.notifier import Notifier
from gateway.relay import Relay
from gateway.tenant_usage import Bill
from ipc.codec import pack_ids, unpack_ids
from ipc.messages import Abort, Accepted, Add, Finish, FinishReason, Output, Outputs, ToGateway
from ipc.params import SamplingParams

SECOND = 1_000_000_000


class Clock:
    """Stands still until it is moved."""

    now_ns = 1_000 * SECOND

    def __call__(self) -> int:
        return self.now_ns


def submit(
    engine: Engine, deadline_ns: int, n: int = 1, notifier: Notifier | None = None, **fields: Any
) -> EngineStream:
    request = GenerationRequest("m", [5, 6], SamplingParams(), 7, n=n, deadline_ns=deadline_ns, **fields)
    return engine.client.submit(request, notifier)


def soon() -> int:
    return time.monotonic_ns() + 5_000_000


def ends(stream: EngineStream) -> list[tuple[int, FinishReason | None]]:
    return [(output.choice, output.finish) for output in taken(stream) if output.finish is not None]


@on_a_loop
async def test_it_ends_while_there_is_no_engine_and_keeps_its_tokens() -> None:
    engine = Engine()
    bill = Bill()
    stream = submit(engine, soon(), n=3, bill=bill)
    engine.output(stream, [1, 2], 0)
    engine.output(stream, [3], 1, FinishReason.LENGTH)
    lose(engine, stream)
    found = taken(stream) + await stream.outputs()
    assert [(output.choice, output.token_ids, output.finish) for output in found] == [
        (0, [1, 2], None),
        (1, [3], FinishReason.LENGTH),
        (0, [], FinishReason.DEADLINE),
        (2, [], FinishReason.DEADLINE),
    ]
    assert stream.is_finished
    assert engine.client.num_in_flight == 0
    assert bill.num_charged == 3, "nobody waits for what the dead engine would have said"
    engine.connect()
    assert not adds(engine)
    stream.finish_choice(0, 1)
    stream.abort()
    assert not engine.connection.of(Abort)
    assert not engine.connection.of(Finish)


@on_a_loop
async def test_one_that_came_meanwhile_was_accepted_and_is_too_late() -> None:
    engine = Engine()
    lose(engine)
    patient, hasty = submit(engine, time.monotonic_ns() + 3600 * SECOND), submit(engine, soon())
    past = submit(engine, 1)
    for stream in (hasty, past):
        await stream.accepted()
        assert ends(stream) == [(0, FinishReason.DEADLINE)]
    engine.connect()
    assert adds(engine).keys() == {patient.request_id}


@on_a_loop
async def test_those_with_a_later_deadline_or_none_wait_on() -> None:
    clock = Clock()
    engine = Engine(clock=clock)
    loop = asyncio.get_running_loop()
    first, second, third, endless = (submit(engine, at and clock.now_ns + at) for at in (SECOND, 2 * SECOND, SECOND, 0))
    lose(engine)
    clock.now_ns += SECOND
    engine.client._end_late()
    assert [ends(stream) for stream in (first, second, third, endless)] == [
        [(0, FinishReason.DEADLINE)],
        [],
        [(0, FinishReason.DEADLINE)],
        [],
    ]
    timer = engine.client._alarm._timer
    assert timer is not None
    assert timer.when() - loop.time() == pytest.approx(1.0, abs=0.2)
    endless.abort()
    clock.now_ns += SECOND  # and the timer is late: an engine comes before
    engine.connect()
    assert ends(second) == [(0, FinishReason.DEADLINE)]
    assert not adds(engine)
    assert engine.client._alarm._timer is None
    assert engine.client.num_in_flight == 0


@on_a_loop
async def test_while_an_engine_has_them_all_deadlines_are_its_business() -> None:
    clock = Clock()
    engine = Engine(clock=clock)
    stream = submit(engine, clock.now_ns + SECOND)
    clock.now_ns += 2 * SECOND
    assert engine.client._alarm._timer is None
    engine.client._end_late()
    assert not taken(stream)
    engine.output(stream, [], finish=FinishReason.DEADLINE)
    assert ends(stream) == [(0, FinishReason.DEADLINE)]


@on_a_loop
async def test_one_whose_deadline_passed_under_a_hung_engine() -> None:
    clock = Clock()
    engine = Engine(clock=clock)
    hung, other = submit(engine, clock.now_ns + SECOND), submit(engine, 0)
    clock.now_ns += 20 * SECOND
    verdict = lose(engine, hung, other)
    assert verdict.condemned is None
    assert ends(hung) == [(0, FinishReason.DEADLINE)]
    engine.connect()
    assert adds(engine).keys() == {other.request_id}


@on_a_loop
async def test_a_suspect_that_is_held_back_ends_too_and_holds_nobody_up() -> None:
    """Others run meanwhile: the engine that serves was never told of it."""
    clock = Clock()
    engine = Engine(clock=clock)
    well = engine.submit()
    engine.output(well, [1])
    suspects = [submit(engine, clock.now_ns + at) for at in (SECOND, SECOND, 3 * SECOND)]
    lose(engine, well, *suspects)
    engine.connect()
    assert adds(engine).keys() == {well.request_id}
    assert engine.client._alarm._timer is not None
    clock.now_ns += SECOND
    engine.client._end_late()
    assert [ends(stream) for stream in suspects] == [[(0, FinishReason.DEADLINE)]] * 2 + [[]]
    engine.output(well, [2])
    assert adds(engine).keys() == {well.request_id, suspects[2].request_id}
    assert not engine.connection.of(Abort)
    clock.now_ns += 3 * SECOND
    engine.client._end_late()  # a timer that was set before it was given to an engine
    assert not taken(suspects[2])
    engine.output(suspects[2], [3], finish=FinishReason.LENGTH)
    engine.output(well, [3], finish=FinishReason.LENGTH)
    assert engine.client._quarantine.is_empty


@on_a_loop
async def test_a_late_suspect_lets_the_next_ones_go() -> None:
    clock = Clock()
    engine = Engine(clock=clock)
    suspects = [submit(engine, clock.now_ns + SECOND if index % 2 else 0) for index in range(10)]
    lose(engine, *suspects)
    clock.now_ns += SECOND
    engine.connect()
    for _ in suspects:
        for request_id, stream in ((stream.request_id, stream) for stream in suspects[::2]):
            if request_id in adds(engine) and not stream.is_finished:
                engine.output(stream, [1], finish=FinishReason.LENGTH)
    assert adds(engine).keys() == {stream.request_id for stream in suspects[::2]}
    assert engine.client.num_in_flight == 0


@on_a_loop
async def test_a_reader_that_leaves_its_other_requests_when_one_ends() -> None:
    clock = Clock()
    engine = Engine(clock=clock)
    notifier = Notifier()
    streams = [submit(engine, clock.now_ns + SECOND, notifier=notifier) for _ in range(3)]
    notifier.listener = lambda: [stream.abort() for stream in streams][0]
    lose(engine)
    clock.now_ns += SECOND
    engine.client._end_late()
    assert engine.client.num_in_flight == 0
    assert sum(len(taken(stream)) for stream in streams) == 1


@on_a_loop
async def test_a_stop_string_that_a_slow_reader_finds_after_it() -> None:
    engine = Engine()
    stream = submit(engine, soon())
    engine.output(stream, [1, 2, 3])
    lose(engine, stream)
    while not stream.is_finished:
        await stream.notifier.wait()
    stream.finish_choice(0, 2)
    assert ends(stream) == [(0, FinishReason.DEADLINE)]


@on_a_loop
async def test_a_stop_string_that_was_found_before_it_is_the_reason() -> None:
    engine = Engine()
    stream = submit(engine, soon(), n=2)
    engine.output(stream, [1, 2, 3])
    stream.finish_choice(0, 2)
    lose(engine, stream)
    while not stream.is_finished:
        await stream.notifier.wait()
    assert ends(stream) == [(0, FinishReason.STOP), (1, FinishReason.DEADLINE)]


@on_a_loop
async def test_a_request_of_another_gateway_process() -> None:
    """It hears what an engine would have said."""
    engine = Engine()
    sent: list[Any] = []
    news = asyncio.Event()

    def send(message: ToGateway) -> None:
        sent.append(message)
        news.set()

    relay = Relay(engine.client, None, send, itertools.count(1))  # type: ignore[arg-type]
    begun = Add(1, 7, "m", pack_ids([5]), SamplingParams(), ((0, b""), (1, b"")), deadline_ns=soon())
    relay.receive(begun)
    engine.connection.receive(Outputs(1, 9, (Output(1, 0, pack_ids([4]), num_cached_tokens=3),)))
    lose(engine)
    relay.receive(Add(2, 8, "m", pack_ids([5]), SamplingParams(), deadline_ns=soon()))
    while not relay.is_idle:
        news.clear()
        await news.wait()
    outputs = [output for message in sent if isinstance(message, Outputs) for output in message.outputs]
    assert [(one.request_id, one.choice, unpack_ids(one.token_ids), one.finish) for one in outputs] == [
        (1, 0, [4], None),
        (1, 0, [], FinishReason.DEADLINE),
        (1, 1, [], FinishReason.DEADLINE),
        (2, 0, [], FinishReason.DEADLINE),
    ]
    assert [output.num_cached_tokens for output in outputs] == [3, 3, 0, 0]
    assert sent.index(Accepted(2)) < next(
        index for index, message in enumerate(sent) if isinstance(message, Outputs) and outputs[3] in message.outputs
    )
    assert engine.client.num_in_flight == 0
    engine.connect()
    assert not adds(engine)
