"""The way from an engine's message to ``send``, with the engine client itself: order, merging, errors, ends."""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from gateway_fakes import EOS, TOKENIZER, ids
from test_engine_client import Engine, on_a_loop

from gateway.engine_stream import EngineStream, GenerationRequest
from gateway.event_pump import KEEP_ALIVE, EventPump
from gateway.generation import ChoiceDelta, Generation, TextOptions
from gateway.generation_group import GenerationGroup
from gateway.recorder import RequestRecorder
from ipc.codec import pack_ids
from ipc.messages import Accepted, Failed, FinishReason, Output, Outputs
from ipc.params import SamplingParams
from observability.metrics import Metrics


class PlainEvents:
    """An event is ``prompt.choice=text;``."""

    def encode(self, deltas: Sequence[tuple[int, ChoiceDelta]]) -> bytes:
        return "".join(f"{prompt}.{delta.choice}={delta.text};" for prompt, delta in deltas if delta.text).encode()

    async def ending(self) -> bytes:
        return b"end"


class Client:
    """Takes what is sent, at once or when it reads."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.reads = asyncio.Event()
        self.reads.set()
        self.error: Exception | None = None

    async def send(self, message: Any) -> None:
        self.sent.append(message["body"])
        await self.reads.wait()
        if self.error is not None:
            raise self.error


class Exchange:
    """A response of ``num_prompts`` prompts with n choices each, being sent."""

    def __init__(self, num_prompts: int, n: int, keep_alive: float = 0.0) -> None:
        self.keep_alive = keep_alive
        self.engine, self.client = Engine(), Client()
        params = SamplingParams(max_tokens=100, eos_token_ids=(EOS,))
        request = GenerationRequest("tiny", [5, 6, 7], params, time.monotonic_ns(), n=n)
        metrics = Metrics(model_name="tiny")
        self.generations = [
            Generation(
                self.engine.client, request, TextOptions(stop=("!",)), TOKENIZER, RequestRecorder(metrics, request)
            )
            for _ in range(num_prompts)
        ]

    async def run(self) -> None:
        async with GenerationGroup(self.generations) as group:
            await group.accepted()
            await EventPump(self.client.send, group, PlainEvents(), self.keep_alive).run()

    async def begin(self) -> "asyncio.Task[None]":
        task = asyncio.create_task(self.run())
        await turns()
        self.streams: list[EngineStream] = [generation._stream for generation in self.generations]
        for stream in self.streams:
            self.engine.connection.receive(Accepted(stream.request_id))
        await turns()
        return task

    def step(self, *texts: tuple[int, int, str], finish: FinishReason | None = None) -> None:
        """One message of the engine: (prompt, choice, text)."""
        outputs = [
            Output(self.streams[prompt].request_id, choice, pack_ids(ids(text)), finish=finish)
            for prompt, choice, text in texts
        ]
        self.engine.connection.receive(Outputs(1, time.monotonic_ns(), tuple(outputs)))


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def with_exchange(num_prompts: int, n: int, test: Callable[[Exchange], Any]) -> None:
    async def scenario() -> None:
        await asyncio.wait_for(test(Exchange(num_prompts, n)), 10)

    asyncio.run(scenario())


def test_a_message_is_sent_before_the_next_turn_and_all_of_a_response_together() -> None:
    async def test(exchange: Exchange) -> None:
        task = await exchange.begin()
        exchange.step((0, 0, "a"), (1, 1, "b"), (0, 1, "c"))
        assert exchange.client.sent == [b"0.0=a;0.1=c;1.1=b;"]
        exchange.step(*((prompt, choice, "") for prompt in (0, 1) for choice in (0, 1)), finish=FinishReason.LENGTH)
        await task
        assert exchange.client.sent[1:] == [b"end"]
        assert exchange.engine.client.num_in_flight == 0

    with_exchange(2, 2, test)


def test_while_the_client_does_not_read_the_rest_waits_in_the_stream() -> None:
    async def test(exchange: Exchange) -> None:
        task = await exchange.begin()
        exchange.client.reads.clear()
        for text in "abc":
            exchange.step((0, 0, text))
        await turns()
        assert exchange.client.sent == [b"0.0=a;"]
        assert exchange.generations[0].num_output_tokens == 1
        exchange.client.reads.set()
        await turns()
        assert exchange.client.sent == [b"0.0=a;", b"0.0=bc;"]
        exchange.step((0, 0, "d!"))
        await task
        assert exchange.client.sent[2:] == [b"0.0=d;", b"end"]

    with_exchange(1, 1, test)


def test_the_end_that_comes_while_the_client_does_not_read_is_sent() -> None:
    async def test(exchange: Exchange) -> None:
        task = await exchange.begin()
        exchange.client.reads.clear()
        exchange.step((0, 0, "a"))
        exchange.step((0, 0, "b"), finish=FinishReason.LENGTH)
        await turns()
        assert not task.done()
        exchange.client.reads.set()
        await task
        assert exchange.client.sent == [b"0.0=a;", b"0.0=b;", b"end"]

    with_exchange(1, 1, test)


@pytest.mark.parametrize("is_slow", [False, True])
def test_an_error_of_sending_ends_the_request_alone(is_slow: bool) -> None:
    async def test(exchange: Exchange) -> None:
        task = await exchange.begin()
        exchange.client.error = ConnectionError("gone")
        if is_slow:
            exchange.client.reads.clear()
        exchange.step((0, 0, "a"))  # the reader of the engine's messages goes on
        exchange.client.reads.set()
        with pytest.raises(ConnectionError, match="gone"):
            await task
        assert exchange.engine.client.num_in_flight == 0
        exchange.step((0, 0, "b"))
        assert exchange.client.sent == [b"0.0=a;"]

    with_exchange(1, 1, test)


def test_what_came_before_a_failure_is_sent() -> None:
    async def test(exchange: Exchange) -> None:
        task = await exchange.begin()
        exchange.client.reads.clear()
        exchange.step((0, 0, "a"))
        exchange.step((0, 0, "b"))
        exchange.engine.connection.receive(Failed(exchange.streams[0].request_id, -1, "corrupt_logits", "NaN"))
        exchange.client.reads.set()
        with pytest.raises(Exception, match="NaN"):
            await task
        assert exchange.client.sent == [b"0.0=a;", b"0.0=b;"]

    with_exchange(1, 1, test)


def test_cancelling_ends_a_send_that_waits() -> None:
    async def test(exchange: Exchange) -> None:
        task = await exchange.begin()
        exchange.client.reads.clear()
        exchange.step((0, 0, "a"))
        await turns()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert len(asyncio.all_tasks()) == 2  # this one and the one that limits its time
        assert exchange.engine.client.num_in_flight == 0

    with_exchange(1, 1, test)


def test_news_that_taking_makes_are_taken_next() -> None:
    """A stop string is told to the engine while its token is taken; the answer may be there at once."""

    async def test(exchange: Exchange) -> None:
        task = await exchange.begin()
        stream = exchange.streams[0]

        def answer_at_once(choice: int, num_tokens: int) -> None:
            exchange.step((0, choice, ""), finish=FinishReason.STOP)

        stream.finish_choice = answer_at_once  # type: ignore[method-assign]
        exchange.step((0, 0, "a!"))
        await task
        assert exchange.client.sent == [b"0.0=a;", b"end"]
        assert exchange.generations[0].num_output_tokens == 2

    with_exchange(1, 1, test)


async def until_sent(client: Client, body: bytes, count: int) -> None:
    while client.sent.count(body) < count:
        await asyncio.sleep(0.001)


@on_a_loop
async def test_silence_is_broken_by_comments_until_the_end() -> None:
    exchange = Exchange(1, 1, keep_alive=0.02)
    task = await exchange.begin()
    await until_sent(exchange.client, KEEP_ALIVE, 2)
    exchange.step((0, 0, "a"))
    assert exchange.client.sent[-1] == b"0.0=a;"
    await until_sent(exchange.client, KEEP_ALIVE, 3)
    exchange.step((0, 0, "b"), finish=FinishReason.LENGTH)
    await task
    assert [body for body in exchange.client.sent if body != KEEP_ALIVE] == [b"0.0=a;", b"0.0=b;", b"end"]


@on_a_loop
async def test_a_client_that_does_not_read_is_not_sent_comments_too() -> None:
    exchange = Exchange(1, 1, keep_alive=0.005)
    task = await exchange.begin()
    exchange.client.reads.clear()
    exchange.step((0, 0, "a"))
    await asyncio.sleep(0.05)
    assert exchange.client.sent[-1] == b"0.0=a;"
    exchange.client.reads.set()
    await until_sent(exchange.client, KEEP_ALIVE, 1)
    exchange.step((0, 0, "b"), finish=FinishReason.LENGTH)
    await task


@on_a_loop
async def test_a_comment_that_cannot_be_sent_ends_the_stream() -> None:
    exchange = Exchange(1, 1, keep_alive=0.005)
    task = await exchange.begin()
    exchange.client.error = OSError("gone")
    with pytest.raises(OSError, match="gone"):
        await task
