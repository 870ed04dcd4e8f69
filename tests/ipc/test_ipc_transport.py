"""Sockets: private paths, keys on tcp, and nothing dropped."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq
from zmq.utils.monitor import recv_monitor_message

from ipc.config import TransportConfig
from ipc.errors import ConfigError
from ipc.transport import MAX_IPC_PATH_BYTES, bind_router, connect_dealer, ipc_endpoint

PATIENCE_MS = 20_000
REFUSALS = zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_AUTH


class Context(zmq.Context[zmq.Socket[bytes]]):
    """Knows the sockets it made."""

    sockets: list[zmq.Socket[bytes]]

    def socket(self, *args: Any, **options: Any) -> zmq.Socket[bytes]:
        made = super().socket(*args, **options)
        self.sockets.append(made)
        return made


@pytest.fixture
def context() -> Iterator[Context]:
    """Whatever is made in it is closed at the end."""
    made = Context()
    made.sockets = []
    yield made
    for socket in made.sockets:
        socket.close(linger=0)
    made.term()


@pytest.fixture
def folder() -> Iterator[Path]:
    """Ours alone, on a short path."""
    with tempfile.TemporaryDirectory() as made:
        yield Path(made)


def curve_keys() -> tuple[str, str]:
    public, secret = zmq.curve_keypair()
    return public.decode(), secret.decode()


def receive(socket: zmq.Socket[bytes]) -> list[bytes]:
    assert socket.poll(PATIENCE_MS), "nothing came"
    return socket.recv_multipart()


# ---- paths


def test_an_endpoint_lies_in_its_folder(folder: Path) -> None:
    assert ipc_endpoint(folder, 12) == f"ipc://{folder}/engine-12.sock"
    assert ipc_endpoint(folder, 1) != ipc_endpoint(folder, 2)


def test_a_path_that_the_system_cannot_hold_is_refused(folder: Path) -> None:
    spare = MAX_IPC_PATH_BYTES - len(os.fsencode(folder / "x" / "engine-1.sock")) + 1
    fits, too_long = folder / ("ä" * (spare // 2) + "x" * (spare % 2)), folder / ("x" * (spare + 1))
    for path in (fits, too_long):
        path.mkdir(mode=0o700)
    endpoint = ipc_endpoint(fits, 1)
    assert len(os.fsencode(endpoint.removeprefix("ipc://"))) == MAX_IPC_PATH_BYTES
    with pytest.raises(ConfigError, match=f"longer than {MAX_IPC_PATH_BYTES} bytes"):
        ipc_endpoint(too_long, 1)


def test_the_longest_path_works(folder: Path, context: Context) -> None:
    path = folder / ("x" * (MAX_IPC_PATH_BYTES - len(os.fsencode(folder / "y" / "engine-1.sock")) + 1))
    path.mkdir(mode=0o700)
    config = TransportConfig(endpoint=ipc_endpoint(path, 1))
    router, dealer = bind_router(context, config), connect_dealer(context, config)
    dealer.send(b"hello")
    assert receive(router)[1:] == [b"hello"]


@pytest.mark.parametrize("mode", [0o701, 0o710, 0o750, 0o755, 0o777])
def test_a_folder_that_others_may_enter_is_refused(folder: Path, mode: int) -> None:
    folder.chmod(mode)
    with pytest.raises(ConfigError, match="must belong to this user alone"):
        ipc_endpoint(folder, 1)


def test_a_folder_of_somebody_else_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = folder.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(ConfigError, match="must belong to this user alone"):
        ipc_endpoint(folder, 1)


# ---- messages


def test_nothing_is_dropped_and_the_engine_may_come_later(folder: Path, context: Context) -> None:
    """More messages than ZeroMQ's default high-water marks, sent before anybody listens, and as many back."""
    config = TransportConfig(endpoint=ipc_endpoint(folder, 1))
    dealer = connect_dealer(context, config)
    sent = [str(index).encode() for index in range(5000)]
    for data in sent:
        dealer.send(data, zmq.NOBLOCK)
    router = bind_router(context, config)
    received = [receive(router) for _ in sent]
    assert [data for _, data in received] == sent
    for identity, data in received:
        router.send_multipart((identity, data), zmq.NOBLOCK)
    assert [receive(dealer) for _ in sent] == [[data] for data in sent]


def test_a_peer_that_is_unknown_is_an_error(folder: Path, context: Context) -> None:
    router = bind_router(context, TransportConfig(endpoint=ipc_endpoint(folder, 1)))
    with pytest.raises(zmq.ZMQError) as raised:
        router.send_multipart((b"nobody", b"data"))
    assert raised.value.errno == zmq.EHOSTUNREACH


# ---- tcp


@pytest.mark.parametrize("given", ["none", "public", "secret"])
def test_tcp_without_keys_is_refused_by_the_engine(context: Context, given: str) -> None:
    public, secret = curve_keys()
    config = TransportConfig(
        endpoint="tcp://127.0.0.1:*",
        server_public_key=public if given == "public" else None,
        server_secret_key=secret if given == "secret" else None,
    )
    with pytest.raises(ConfigError, match="CURVE keys"):
        bind_router(context, config)
    assert context.sockets == []


@pytest.mark.parametrize(("has_server_key", "has_own_keys"), [(False, False), (True, False), (False, True)])
def test_tcp_without_keys_is_refused_by_a_gateway(context: Context, has_server_key: bool, has_own_keys: bool) -> None:
    config = TransportConfig(
        endpoint="tcp://127.0.0.1:9", server_public_key=curve_keys()[0] if has_server_key else None
    )
    with pytest.raises(ConfigError, match="CURVE keys"):
        connect_dealer(context, config, curve_keys() if has_own_keys else None)
    assert context.sockets == []


def tcp_router(context: Context) -> tuple[zmq.Socket[bytes], TransportConfig]:
    """The engine's end on a free port, and what a gateway is told of it."""
    public, secret = curve_keys()
    config = TransportConfig(endpoint="tcp://127.0.0.1:*", server_secret_key=secret, server_public_key=public)
    router = bind_router(context, config)
    endpoint = router.getsockopt(zmq.LAST_ENDPOINT)
    assert isinstance(endpoint, bytes)
    return router, TransportConfig(endpoint=endpoint.rstrip(b"\0").decode(), server_public_key=public)


def test_tcp_with_keys_goes_both_ways(context: Context) -> None:
    router, config = tcp_router(context)
    dealer = connect_dealer(context, config, curve_keys())
    dealer.send(b"hello")
    identity, data = receive(router)
    assert data == b"hello"
    router.send_multipart((identity, b"ready"))
    assert receive(dealer) == [b"ready"]


def test_whoever_does_not_know_the_engines_key_gets_nothing(context: Context) -> None:
    router, config = tcp_router(context)
    monitor = router.get_monitor_socket(REFUSALS)
    wrong = TransportConfig(endpoint=config.endpoint, server_public_key=curve_keys()[0])
    stranger = connect_dealer(context, wrong, curve_keys())
    stranger.send(b"hello")
    assert monitor.poll(PATIENCE_MS), "nobody was refused"
    assert recv_monitor_message(monitor)["event"] & REFUSALS
    assert not router.poll(0)
    router.disable_monitor()


def test_whoever_speaks_plainly_gets_nothing(context: Context) -> None:
    router, config = tcp_router(context)
    monitor = router.get_monitor_socket(REFUSALS)
    stranger = context.socket(zmq.DEALER)
    stranger.connect(config.endpoint)
    stranger.send(b"hello")
    assert monitor.poll(PATIENCE_MS), "nobody was refused"
    assert recv_monitor_message(monitor)["event"] & REFUSALS
    assert not router.poll(0)
    router.disable_monitor()
