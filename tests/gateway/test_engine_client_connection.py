"""The gateway's socket on a real event loop, against a real ROUTER."""

import asyncio
import shutil
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import zmq

from gateway.engine_connection import EngineConnection
from ipc.codec import decode_for_engine, encode
from ipc.config import TransportConfig
from ipc.messages import PROTOCOL, Abort, Accepted, Beat, Hello, Ready, ToEngine, ToGateway
from ipc.transport import bind_router, ipc_endpoint

READY = Ready(PROTOCOL, 3, "numerics", "digest", 100, 100, 64, 16, 8, 0, 0)


class Peer:
    """The engine's end, driven by hand, and what the connection has told its owner."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], config: TransportConfig) -> None:
        self.router = bind_router(context, config)
        self.connection = EngineConnection(context, config, asyncio.get_running_loop())
        self.messages: list[ToGateway] = []
        self.owner = b""

    def start(self, on_message: Callable[[ToGateway], None] | None = None) -> None:
        self.connection.start(on_message or self.messages.append)
        message = self.receive()
        assert message == Hello(PROTOCOL)

    def receive(self) -> ToEngine:
        assert self.router.poll(5000), "nothing came"
        self.owner, data = self.router.recv_multipart()
        return decode_for_engine(data)

    def send(self, message: ToGateway | bytes) -> None:
        self.router.send_multipart((self.owner, message if isinstance(message, bytes) else encode(message)))

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(20):
            while not condition():
                await asyncio.sleep(0.001)


@asynccontextmanager
async def peer() -> AsyncIterator[Peer]:
    folder = Path(tempfile.mkdtemp(prefix="octavo-"))
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    config = TransportConfig(endpoint=ipc_endpoint(folder, 3), incarnation=3)
    peer = Peer(context, config)
    try:
        yield peer
    finally:
        peer.connection.close()
        context.destroy(linger=0)
        shutil.rmtree(folder)


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(test)


def test_messages_of_another_incarnation_and_of_no_kind_are_dropped() -> None:
    async def test() -> None:
        async with peer() as engine:
            engine.start()
            engine.send(Beat(2, 1, 1, 1))
            engine.send(b"\xc1 no message")
            engine.send(Ready(PROTOCOL, 2, "n", "d", 1, 1, 1, 16, 1, 0, 0))
            engine.send(READY)
            engine.send(Accepted(5))
            await engine.until(lambda: len(engine.messages) == 2)
            assert engine.messages == [READY, Accepted(5)]

    run(test())


def test_nothing_is_lost_beyond_a_thousand_messages_either_way() -> None:
    """Both sides stand still while the other sends: ZeroMQ's usual limit would drop or block."""

    async def test() -> None:
        async with peer() as engine:
            engine.start()
            count = 3000
            for number in range(count):
                engine.connection.send(Abort(number))
            assert [engine.receive() for _ in range(count)] == [Abort(number) for number in range(count)]
            for number in range(count):
                engine.send(Accepted(number))
            await engine.until(lambda: len(engine.messages) == count)
            assert engine.messages == [Accepted(number) for number in range(count)]

    run(test())


def test_a_message_that_comes_while_another_is_sent_is_seen() -> None:
    """Sending takes the edge of the file descriptor; what is there must be read all the same."""

    async def test() -> None:
        async with peer() as engine:
            engine.start()
            for number in range(200):
                engine.send(Accepted(2 * number))
                engine.connection.send(Abort(number))
                engine.receive()
                engine.send(Accepted(2 * number + 1))
                await engine.until(lambda number=number: len(engine.messages) == 2 * number + 2)  # type: ignore[misc]

    run(test())


def test_an_error_over_one_message_does_not_hide_the_next() -> None:
    async def test() -> None:
        reported: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context["exception"]))
        async with peer() as engine:

            def receive(message: ToGateway) -> None:
                if message == Accepted(0):
                    raise RuntimeError("a bug")
                engine.messages.append(message)

            engine.start(receive)
            for number in range(5):
                engine.send(Accepted(number))
            await engine.until(lambda: len(engine.messages) == 4)
            assert engine.messages == [Accepted(number) for number in range(1, 5)]
        assert [str(error) for error in reported] == ["a bug"]

    run(test())


def test_what_was_sent_before_the_engine_listens_arrives() -> None:
    async def test() -> None:
        folder = Path(tempfile.mkdtemp(prefix="octavo-"))
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        config = TransportConfig(endpoint=ipc_endpoint(folder, 1), incarnation=1)
        try:
            connection = EngineConnection(context, config, asyncio.get_running_loop())
            connection.start(lambda message: None)
            connection.send(Abort(1))
            router = bind_router(context, config)
            for expected in (Hello(PROTOCOL), Abort(1)):
                assert router.poll(5000)
                assert decode_for_engine(router.recv_multipart()[1]) == expected
            connection.close()
        finally:
            context.destroy(linger=0)
            shutil.rmtree(folder)

    run(test())


def test_closing_drops_what_is_queued_and_may_be_repeated() -> None:
    """Messages for an engine that never came must not hold the end up: the context has nothing to wait for."""

    async def test() -> None:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        folder = Path(tempfile.mkdtemp(prefix="octavo-"))
        try:
            config = TransportConfig(endpoint=ipc_endpoint(folder, 1), incarnation=1)
            connection = EngineConnection(context, config, asyncio.get_running_loop())
            connection.start(lambda message: pytest.fail("a closed connection told something"))
            connection.send(Abort(1))
            connection.close()
            connection.close()
            await asyncio.sleep(0)  # the reads that were due
        finally:
            shutil.rmtree(folder)
        ending = threading.Thread(target=context.term, daemon=True)
        ending.start()
        ending.join(10)
        assert not ending.is_alive()

    run(test())
