"""The registry of requests in flight: each ends exactly once, and what it takes to go on elsewhere is there."""

import asyncio
import gc
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from gateway.engine_client import EngineClient
from gateway.engine_stream import EngineStream, GenerationRequest
from ipc.codec import pack_ids, unpack_ids
from ipc.errors import CapacityError, EngineError, RequestError
from ipc.messages import (
    Abort,
    Accepted,
    Add,
    Beat,
    Failed,
    Finish,
    FinishReason,
    Output,
    Outputs,
    Ready,
    Refused,
    Stats,
    ToEngine,
    ToGateway,
)
from ipc.params import SamplingParams

READY = Ready(1, 1, "numerics", "digest", 100, 100, 64, 16, 8, 0, 0)


class Connection:
    """Remembers what is sent; the test says what comes."""

    def __init__(self) -> None:
        self.sent: list[ToEngine] = []
        self.is_closed = False

    def start(self, on_message: Callable[[ToGateway], None]) -> None:
        self.receive = on_message

    def send(self, message: ToEngine) -> None:
        assert not self.is_closed
        self.sent.append(message)

    def close(self) -> None:
        self.is_closed = True

    def of(self, kind: type[Any]) -> list[Any]:
        return [message for message in self.sent if isinstance(message, kind)]


class Engine:
    """A client on the running loop, and the other end of its connection."""

    def __init__(self, *, is_ready: bool = True, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self.stats: list[Stats] = []
        self.readies: list[Ready] = []
        self.client = EngineClient(asyncio.get_running_loop(), self.stats.append, self.readies.append, clock)
        self.connect(is_ready=is_ready)

    def connect(self, *, is_ready: bool = True) -> None:
        self.connection = Connection()
        self.client.connect(self.connection)  # type: ignore[arg-type]
        if is_ready:
            self.connection.receive(READY)

    def submit(self, n: int = 1) -> EngineStream:
        request = GenerationRequest("tiny", [5, 6], SamplingParams(), arrival_ns=7, n=n, cache_salt="s", priority=3)
        return self.client.submit(request)

    def output(self, stream: EngineStream, ids: list[int], choice: int = 0, finish: FinishReason | None = None) -> None:
        one = Output(stream.request_id, choice, pack_ids(ids), finish=finish)
        self.connection.receive(Outputs(1, 9, (one,)))


def on_a_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def run() -> None:
        asyncio.run(asyncio.wait_for(test(), 10))

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


@on_a_loop
async def test_nothing_is_taken_before_the_engine_is_ready() -> None:
    engine = Engine(is_ready=False)
    assert not engine.client.is_ready
    for ask in (engine.submit, lambda: engine.client.ready):
        with pytest.raises(EngineError, match="not ready") as caught:
            ask()
        assert caught.value.status == 503
    assert engine.client.num_in_flight == 0
    engine.connection.receive(READY)
    assert engine.client.ready is READY
    assert engine.readies == [READY]
    stream = engine.submit()
    (add,) = engine.connection.of(Add)
    assert (add.request_id, add.choices, add.is_resumed) == (stream.request_id, ((0, b""),), False)
    assert (unpack_ids(add.prompt_ids), add.arrival_ns, add.cache_salt, add.priority) == ([5, 6], 7, "s", 3)


@on_a_loop
async def test_what_the_engine_says_to_a_request() -> None:
    engine = Engine()
    streams = [engine.submit() for _ in range(6)]
    answers: list[ToGateway] = [
        Accepted(streams[0].request_id),
        Refused(streams[1].request_id, "full", 2500),
        Failed(streams[2].request_id, -1, "impossible", "too long"),
        Failed(streams[3].request_id, -1, "draining", "not now"),
        Failed(streams[4].request_id, -1, "corrupt_logits", "NaN"),
        Failed(streams[5].request_id, -1, "out_of_memory", "too little memory left"),
    ]
    for answer in answers:
        engine.connection.receive(answer)
    await streams[0].accepted()
    with pytest.raises(CapacityError) as refused:
        await streams[1].accepted()
    assert refused.value.retry_after == 2.5
    with pytest.raises(RequestError) as impossible:
        await streams[2].accepted()
    assert (impossible.value.code, impossible.value.status) == ("impossible", 400)
    failures = ((503, "draining"), (500, "corrupt_logits"), (503, "out_of_memory"))
    for stream, (status, code) in zip(streams[3:], failures, strict=True):
        with pytest.raises(EngineError) as failed:
            await stream.accepted()
        assert (failed.value.code, failed.value.status) == (code, status)
        with pytest.raises(EngineError):
            await stream.outputs()
        assert stream.is_finished
    assert engine.client.num_in_flight == 1


@on_a_loop
async def test_a_slow_reader_finds_all_outputs_at_once_and_a_fast_one_waits() -> None:
    engine = Engine()
    stream = engine.submit()
    waiting = asyncio.create_task(stream.outputs())
    await asyncio.sleep(0)
    assert not waiting.done()
    engine.output(stream, [10])
    assert [output.token_ids for output in await waiting] == [[10]]
    engine.output(stream, [11])
    engine.output(stream, [12, 13], finish=FinishReason.LENGTH)
    found = await stream.outputs()
    assert [output.token_ids for output in found] == [[11], [12, 13]]
    assert [output.finish for output in found] == [None, FinishReason.LENGTH]
    assert {output.time_ns for output in found} == {9}
    assert stream.is_finished
    assert engine.client.num_in_flight == 0


@on_a_loop
async def test_leaving_aborts_once_and_only_what_has_not_ended() -> None:
    engine = Engine()
    async with engine.submit() as stream:
        engine.output(stream, [10])
    assert engine.connection.of(Abort) == [Abort(stream.request_id)]
    stream.abort()
    assert len(engine.connection.of(Abort)) == 1
    assert engine.client.num_in_flight == 0
    engine.output(stream, [11], finish=FinishReason.ABORT)  # the engine's answer is for nobody
    async with engine.submit() as ended:
        engine.output(ended, [10], finish=FinishReason.STOP)
    async with engine.submit() as failed:
        engine.connection.receive(Failed(failed.request_id, -1, "x", "y"))
    with pytest.raises(KeyError):
        async with engine.submit() as left_by_error:
            raise KeyError
    assert engine.connection.of(Abort) == [Abort(stream.request_id), Abort(left_by_error.request_id)]


@on_a_loop
async def test_a_request_with_choices_ends_with_its_last_one() -> None:
    engine = Engine()
    stream = engine.submit(n=2)
    engine.output(stream, [10], choice=1, finish=FinishReason.STOP)
    assert engine.client.num_in_flight == 1
    stream.finish_choice(0, 3)
    stream.finish_choice(1, 1)  # it has ended already
    assert engine.connection.of(Finish) == [Finish(stream.request_id, 0, FinishReason.STOP, 3)]
    engine.output(stream, [], choice=0, finish=FinishReason.STOP)
    assert stream.is_finished
    assert engine.client.num_in_flight == 0


@on_a_loop
async def test_a_failed_choice_fails_the_request_and_takes_its_other_choices_along() -> None:
    engine = Engine()
    stream = engine.submit(n=3)
    engine.output(stream, [10], choice=2)
    engine.connection.receive(Failed(stream.request_id, 1, "corrupt_logits", "NaN"))
    assert engine.connection.of(Abort) == [Abort(stream.request_id)]
    assert [output.token_ids for output in await stream.outputs()] == [[10]]  # what came before the failure
    with pytest.raises(EngineError, match="NaN"):
        await stream.outputs()
    assert engine.client.num_in_flight == 0


@on_a_loop
async def test_what_another_engine_needs_to_go_on() -> None:
    """The prompt, and for each choice that has not ended every token received, read or not."""
    engine = Engine()
    stream = engine.submit(n=3)
    engine.output(stream, [10, 11], choice=0)
    engine.output(stream, [20], choice=1, finish=FinishReason.STOP)
    await stream.outputs()
    engine.output(stream, [12], choice=0)
    stream.flight.was_resumed = True
    add = stream.flight.as_add()
    assert [(choice, unpack_ids(ids)) for choice, ids in add.choices] == [(0, [10, 11, 12]), (2, [])]
    assert add.is_resumed
    assert unpack_ids(add.prompt_ids) == [5, 6]
    assert add.arrival_ns == 7


@on_a_loop
async def test_when_the_engine_is_gone_every_request_hears_it_after_its_last_outputs() -> None:
    engine = Engine()
    streams = [engine.submit(), engine.submit()]
    engine.output(streams[0], [10])
    waiting = asyncio.create_task(streams[1].outputs())
    await asyncio.sleep(0)
    engine.client.disconnect(EngineError("the engine died", code="engine_died"))
    engine.client.disconnect(EngineError("the server is shutting down", code="shutting_down"))  # later, and no news
    assert [output.token_ids for output in await streams[0].outputs()] == [[10]]
    with pytest.raises(EngineError, match="died"):
        await streams[0].outputs()
    with pytest.raises(EngineError, match="died"):
        await waiting
    with pytest.raises(EngineError, match="died"):
        await streams[1].accepted()
    assert engine.connection.is_closed
    assert engine.client.num_in_flight == 0
    for stream in streams:
        stream.abort()  # nobody is there to be told
    with pytest.raises(EngineError) as caught:
        engine.submit()
    assert (caught.value.code, caught.value.status) == ("engine_died", 503)
    engine.connect(is_ready=False)
    with pytest.raises(EngineError, match="not ready"):
        engine.submit()
    engine.connection.receive(READY)
    engine.submit()


@on_a_loop
async def test_a_refusal_that_nobody_awaits_is_no_warning() -> None:
    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context))
    engine = Engine()
    engine.connection.receive(Refused(engine.submit().request_id, "full", 1))
    gc.collect()
    assert not reported


@on_a_loop
async def test_cancelling_one_who_waits_leaves_the_request_as_it_was() -> None:
    engine = Engine()
    stream = engine.submit()
    for wait in (stream.accepted, stream.outputs):
        task = asyncio.create_task(wait())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    engine.connection.receive(Accepted(stream.request_id))
    engine.output(stream, [10])
    await stream.accepted()
    assert [output.token_ids for output in await stream.outputs()] == [[10]]


@on_a_loop
async def test_messages_about_nobody_and_about_the_engine_itself() -> None:
    engine = Engine()
    for message in (Accepted(1), Refused(1, "full", 1), Failed(1, -1, "x", "y"), Outputs(1, 1, (Output(1, 0, b""),))):
        engine.connection.receive(message)
    assert engine.connection.sent == []
    beat, stats = Beat(1, 5, 6, 7), Stats(1, 8)
    engine.connection.receive(beat)
    engine.connection.receive(stats)
    assert engine.client.last_beat is beat
    assert engine.stats == [stats]


@on_a_loop
async def test_ids_of_two_clients_do_not_meet() -> None:
    first, second = Engine(), Engine()
    ids = [engine.submit().request_id for engine in (first, second) for _ in range(3)]
    assert len(set(ids)) == 6
    assert all(0 <= request_id < 2**64 for request_id in ids)
