"""The engine's socket thread over real sockets, as a gateway sees it. No test waits for longer than it must."""

import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
import zmq

from engine_core.channel import GatewayGone, Inbound, UnfitRequest
from engine_core.io import SocketThread
from engine_core.progress import HowFar
from engine_core.sequence import Request
from ipc.codec import decode_for_gateway, encode, pack_ids
from ipc.config import TransportConfig
from ipc.messages import (
    PROTOCOL,
    Abort,
    Accepted,
    Add,
    Beat,
    Drain,
    Failed,
    Finish,
    FinishReason,
    Hello,
    Ready,
    Stats,
    ToEngine,
    ToGateway,
)
from ipc.params import SamplingParams
from ipc.transport import connect_dealer, ipc_endpoint

PATIENCE_MS = 20_000
READY = Ready(PROTOCOL, 3, "numerics", "digest", 12, 12, 64, 16, 8, 1, 2)


def make_add(request_id: int) -> Add:
    return Add(request_id, 1, "", pack_ids([1, 2]), SamplingParams())


def build_request(owner: bytes, message: Add) -> Request | UnfitRequest:
    return Request(message.request_id, owner, message.arrival_ns, message.params, 2)


class Gateway:
    """A DEALER that reads one message at a time."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], config: TransportConfig) -> None:
        self.socket = connect_dealer(context, config)

    def send(self, *messages: ToEngine) -> None:
        for message in messages:
            self.socket.send(encode(message))

    def receive(self) -> ToGateway:
        """The next message, whatever it is."""
        assert self.socket.poll(PATIENCE_MS), "nothing came"
        return decode_for_gateway(self.socket.recv())

    def receive_but_beats(self) -> ToGateway:
        """The next message that is no beat."""
        return self.receive_but(Beat)

    def receive_but(self, *kinds: type[ToGateway]) -> ToGateway:
        """The next message that is of none of these kinds."""
        while isinstance(message := self.receive(), kinds):
            pass
        return message


@pytest.fixture
def config() -> Iterator[TransportConfig]:
    """An endpoint on a short path."""
    with tempfile.TemporaryDirectory() as folder:
        yield TransportConfig(endpoint=ipc_endpoint(Path(folder), 3), incarnation=3)


@pytest.fixture
def engine(config: TransportConfig) -> Iterator[SocketThread]:
    """The engine's end, loading."""
    thread = SocketThread(config, lambda: HowFar(5, 6))
    yield thread
    thread.close()


@pytest.fixture
def connect(config: TransportConfig) -> Iterator[Callable[[], Gateway]]:
    """Makes gateways."""
    made: list[Gateway] = []

    def connect_one() -> Gateway:
        made.append(Gateway(context, config))
        return made[-1]

    with zmq.Context() as context:
        yield connect_one
        for gateway in made:
            gateway.socket.close()


@pytest.fixture
def gateway(engine: SocketThread, connect: Callable[[], Gateway]) -> Gateway:
    return connect()


def inbox(engine: SocketThread, count: int) -> list[Inbound]:
    """The next messages of the loop."""
    messages: list[Inbound] = []
    while len(messages) < count:
        found = engine.receive(timeout=PATIENCE_MS / 1000)
        assert found, "nothing came"
        messages += found
    return messages


# ---- hello and ready


def test_a_hello_before_the_model_is_loaded_is_answered_when_it_is(engine: SocketThread, gateway: Gateway) -> None:
    gateway.send(Hello(PROTOCOL))
    assert isinstance(gateway.receive(), Beat)
    engine.announce(READY, build_request)
    assert gateway.receive_but_beats() == READY


def test_a_hello_after_the_model_is_loaded_is_answered_at_once(engine: SocketThread, gateway: Gateway) -> None:
    engine.announce(READY, build_request)
    gateway.send(Hello(PROTOCOL))
    assert gateway.receive_but_beats() == READY


def test_another_protocol_is_not_answered(engine: SocketThread, connect: Callable[[], Gateway]) -> None:
    stranger, gateway = connect(), connect()
    engine.announce(READY, build_request)
    stranger.send(Hello(PROTOCOL + 1), Abort(1))
    ((owner, _),) = inbox(engine, 1)
    gateway.send(Hello(PROTOCOL))
    assert gateway.receive_but_beats() == READY
    engine.broadcast(Stats(3, 1))
    engine.send(owner, Accepted(9))  # the order of what one thread sends to one socket is kept
    assert gateway.receive_but_beats() == Stats(3, 1)
    assert stranger.receive() == Accepted(9)


def test_beats_show_that_the_process_lives(engine: SocketThread, gateway: Gateway) -> None:
    gateway.send(Hello(PROTOCOL))
    beats = [gateway.receive() for _ in range(2)]
    assert all(isinstance(beat, Beat) for beat in beats)
    first, second = (beat for beat in beats if isinstance(beat, Beat))
    assert (first.incarnation, first.num_loops, first.num_layers) == (3, 5, 6)
    assert second.time_ns - first.time_ns > 100_000_000


# ---- requests


def test_a_request_before_the_model_is_loaded_fails(engine: SocketThread, gateway: Gateway) -> None:
    gateway.send(make_add(1))
    failure = gateway.receive()
    assert isinstance(failure, Failed)
    assert (failure.request_id, failure.choice, failure.code) == (1, -1, "not_ready")
    assert engine.receive(timeout=0) == []


def test_messages_reach_the_loop_in_order_with_their_sender(engine: SocketThread, gateway: Gateway) -> None:
    engine.announce(READY, build_request)
    finish = Finish(1, 0, FinishReason.STOP, 3)
    gateway.send(make_add(1), finish, Abort(1), Drain())
    messages = inbox(engine, 4)
    assert len({owner for owner, _ in messages}) == 1
    assert [type(message) for _, message in messages] == [Request, Finish, Abort, Drain]
    assert messages[1][1] == finish
    engine.send(messages[0][0], Accepted(1))
    assert gateway.receive() == Accepted(1)


def test_a_message_goes_to_one_gateway_and_a_broadcast_to_all(
    engine: SocketThread, connect: Callable[[], Gateway]
) -> None:
    one, other = connect(), connect()
    engine.announce(READY, build_request)
    for gateway in (one, other):
        gateway.send(Hello(PROTOCOL))
        assert gateway.receive_but_beats() == READY
    one.send(Abort(1))
    ((owner, _),) = inbox(engine, 1)
    engine.send(owner, Accepted(1))
    engine.broadcast(Stats(3, 1))
    # Who says hello while the announcement is on its way hears it twice.
    assert one.receive_but(Beat, Ready) == Accepted(1)
    assert one.receive_but(Beat, Ready) == Stats(3, 1)
    assert other.receive_but(Beat, Ready) == Stats(3, 1)


@pytest.mark.parametrize(
    "frames",
    [
        [b""],
        [b"\xc1"],
        [encode(Abort(1))[:-1]],
        [encode(Accepted(1))],
        [msgspec.msgpack.encode([99, 1])],
        [msgspec.msgpack.encode([4, "one"])],
        [encode(Abort(1)), encode(Abort(2))],
        [encode(Finish(1, 0, 77, 1))],
    ],
    ids=[
        "empty",
        "no msgpack",
        "cut off",
        "another direction",
        "another tag",
        "another type",
        "two frames",
        "no reason",
    ],
)
def test_what_is_no_message_is_dropped(engine: SocketThread, gateway: Gateway, frames: list[bytes]) -> None:
    gateway.socket.send_multipart(frames)
    gateway.send(Abort(5))
    assert [message for _, message in inbox(engine, 1)] == [Abort(5)]


def test_a_flood_of_requests_does_not_hold_answers_back(engine: SocketThread, gateway: Gateway) -> None:
    """Reading prompts takes time: what the loop says, and beats, must go out in between."""
    everything_is_sent, answer_is_received = threading.Event(), threading.Event()

    def build_slowly(owner: bytes, message: Add) -> Request | UnfitRequest:
        everything_is_sent.wait(PATIENCE_MS / 1000)
        if message.request_id >= 200:
            answer_is_received.wait(PATIENCE_MS / 1000)
        time.sleep(0.001)  # what hashing a prompt takes
        return build_request(owner, message)

    engine.announce(READY, build_slowly)
    gateway.send(Abort(1))
    ((owner, _),) = inbox(engine, 1)
    gateway.send(*(make_add(request_id) for request_id in range(400)))
    engine.send(owner, Accepted(1))
    everything_is_sent.set()
    assert gateway.receive_but_beats() == Accepted(1)
    answer_is_received.set()
    assert len(inbox(engine, 400)) == 400


def test_an_unfit_request_reaches_the_loop_as_such(engine: SocketThread, gateway: Gateway) -> None:
    engine.announce(READY, lambda owner, message: UnfitRequest(message.request_id, "because"))
    gateway.send(make_add(4))
    assert [message for _, message in inbox(engine, 1)] == [UnfitRequest(4, "because")]


def test_nothing_is_waited_for_when_nothing_may_be(engine: SocketThread) -> None:
    assert engine.receive(timeout=0) == []


# ---- ends


def test_a_gateway_that_goes_away_is_noticed(engine: SocketThread, gateway: Gateway) -> None:
    """By its beats, without anybody sending to it."""
    gateway.send(Hello(PROTOCOL), Abort(1))
    ((owner, _),) = inbox(engine, 1)
    gateway.socket.close()
    assert inbox(engine, 1) == [(owner, GatewayGone())]


def test_whoever_cannot_be_answered_is_gone(engine: SocketThread, gateway: Gateway) -> None:
    """Even one that never said hello, or whose request was read after it was found to be gone."""
    gateway.send(Abort(1))
    ((owner, _),) = inbox(engine, 1)
    gateway.socket.close()
    for _ in range(400):  # until the socket has noticed
        engine.send(owner, Accepted(1))
        messages = engine.receive(timeout=0.05)
        if messages:
            break
    assert messages[0] == (owner, GatewayGone())


def test_closing_sends_what_is_queued(config: TransportConfig, connect: Callable[[], Gateway]) -> None:
    engine = SocketThread(config, HowFar)
    gateway = connect()
    gateway.send(Abort(1))
    ((owner, _),) = inbox(engine, 1)
    for request_id in range(1000):
        engine.send(owner, Accepted(request_id))
    engine.close()
    assert [gateway.receive() for _ in range(1000)] == [Accepted(request_id) for request_id in range(1000)]


def test_an_endpoint_can_be_bound_again_after_its_end(config: TransportConfig, connect: Callable[[], Gateway]) -> None:
    for _ in range(2):
        engine = SocketThread(config, HowFar)
        gateway = connect()
        gateway.send(Hello(PROTOCOL))
        assert isinstance(gateway.receive(), Beat)
        engine.close()
