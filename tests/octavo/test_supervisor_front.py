"""The listening socket, the answers before there is an application, and the end of the HTTP server."""

import asyncio
import json
import socket
import stat
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send

from ipc.config import GatewayConfig
from ipc.errors import ConfigError
from octavo import front
from octavo.front import Front, HttpServer, address, bind


@pytest.fixture
def listeners() -> Iterator[Callable[..., socket.socket]]:
    """Binds, and closes at the end."""
    opened: list[socket.socket] = []

    def bound(**options: Any) -> socket.socket:
        opened.append(bind(GatewayConfig(**options)))
        return opened[-1]

    yield bound
    for listener in opened:
        listener.close()


def test_a_port_is_taken_once(listeners: Callable[..., socket.socket]) -> None:
    listener = listeners(port=0)
    host, port = listener.getsockname()
    assert host == "127.0.0.1"
    assert address(GatewayConfig(port=0), listener) == f"http://127.0.0.1:{port}"
    with socket.create_connection((host, port)):
        listener.accept()[0].close()  # closed here first: the port is in TIME_WAIT
    with pytest.raises(ConfigError, match=f"--port {port} on 127.0.0.1: is in use by another process"):
        listeners(port=port)
    listener.close()
    listeners(port=port)


@pytest.mark.parametrize(
    ("host", "shown"), [("0.0.0.0", "http://127.0.0.1:"), ("::", "http://[::1]:"), ("::1", "http://[::1]:")]
)
def test_the_shown_address_is_one_that_reaches_it(
    listeners: Callable[..., socket.socket], host: str, shown: str
) -> None:
    try:
        listener = listeners(host=host, port=0)
    except ConfigError:
        pytest.skip("this machine has no IPv6")
    url = address(GatewayConfig(host=host), listener)
    assert url.startswith(shown)
    host, _, port = url.removeprefix("http://").rpartition(":")
    with socket.create_connection((host.strip("[]"), int(port))):
        pass


@pytest.mark.parametrize("host", ["a..b", "x" * 70 + ".org"])
def test_a_host_that_is_none(listeners: Callable[..., socket.socket], host: str) -> None:
    with pytest.raises(ConfigError, match=f"--host {host}: is no host name"):
        listeners(host=host, port=0)


def test_a_host_that_nobody_knows(listeners: Callable[..., socket.socket], monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*arguments: Any, **options: Any) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(ConfigError, match="--host nobody: Name or service not known"):
        listeners(host="nobody", port=0)


def test_an_address_of_another_machine(listeners: Callable[..., socket.socket]) -> None:
    with pytest.raises(ConfigError, match="on 192.0.2.1: "):
        listeners(host="192.0.2.1", port=0)


def test_a_socket_file(listeners: Callable[..., socket.socket], tmp_path: Path) -> None:
    path = tmp_path / "socket"
    listener = listeners(uds=str(path))
    assert stat.S_ISSOCK(path.stat().st_mode)
    assert address(GatewayConfig(uds=str(path)), listener) == "http://localhost"
    with pytest.raises(ConfigError, match="--uds .*in use"):
        listeners(uds=str(path))
    listener.close()  # killed: the file stays, and is no obstacle
    assert path.exists()
    with listeners(uds=str(path)), socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))


def test_a_file_that_is_no_socket_is_left_alone(listeners: Callable[..., socket.socket], tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("precious")
    with pytest.raises(ConfigError, match="--uds"):
        listeners(uds=str(path))
    assert path.read_text() == "precious"


# ---- the server


async def call(app: Any, path: str) -> list[dict[str, Any]]:
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await app({"type": "http", "path": path, "method": "GET", "headers": []}, receive, send)
    return sent


def test_before_there_is_an_application_it_lives_but_is_not_ready() -> None:
    app = Front()
    start, body = asyncio.run(call(app, "/health/live"))
    assert (start["status"], json.loads(body["body"])) == (200, {"status": "alive"})
    for path in ("/health", "/health/ready", "/v1/chat/completions", "/anything"):
        start, body = asyncio.run(call(app, path))
        headers = dict(start["headers"])
        assert start["status"] == 503
        assert b"retry-after" in headers
        assert int(headers[b"content-length"]) == len(body["body"])
        assert json.loads(body["body"])["error"]["code"] == "starting"

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 204, "headers": []})

    app.app = application
    assert asyncio.run(call(app, "/health"))[0]["status"] == 204


class Served:
    """An application behind the server, and what became of its exchanges."""

    def __init__(self, listener: socket.socket) -> None:
        self.front = Front()
        self.front.app = self.answer
        self.server = HttpServer(self.front, listener, GatewayConfig(max_header_bytes=4096))
        self.port = listener.getsockname()[1]
        self.release = asyncio.Event()
        self.began = asyncio.Event()
        self.received: list[str] = []

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Reads the whole request, waits, answers with a large body."""
        while (message := await receive())["type"] == "http.request":
            self.received.append(message["type"])
            self.began.set()
            if not message.get("more_body"):
                break
        else:
            self.received.append(message["type"])
            return
        await self.release.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x" * 30_000_000, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def connect(self, request: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(request)
        await self.began.wait()
        return reader, writer


def serve(test: Callable[[Served], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        with bind(GatewayConfig(port=0)) as listener:
            served = Served(listener)
            served.server.start()
            await asyncio.wait_for(test(served), 30)

    asyncio.run(run())


def test_stopping_lets_a_response_end() -> None:
    async def test(served: Served) -> None:
        reader, writer = await served.connect(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        stopping = asyncio.create_task(served.server.stop())
        await asyncio.sleep(0.15)  # uvicorn looks every tenth of a second whether it is to end
        assert not stopping.done()
        served.release.set()
        body = await reader.read(-1)
        assert body.count(b"x") >= 30_000_000
        await stopping
        writer.close()

    serve(test)


@pytest.mark.parametrize("keeps_waiting", ["does not finish its request", "does not read"])
def test_stopping_cuts_off_who_keeps_it_waiting(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, keeps_waiting: str
) -> None:
    """Quietly: to the application it is a client that has left."""
    monkeypatch.setattr(front, "PATIENCE_SECONDS", 0.3)

    async def test(served: Served) -> None:
        served.release.set()
        length = 100 if keeps_waiting == "does not finish its request" else 5
        _, writer = await served.connect(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\nabcde" % length)
        started = time.monotonic()
        await served.server.stop()
        assert 0.3 <= time.monotonic() - started < 4
        if length == 100:
            assert served.received[-1] == "http.disconnect"
        writer.close()

    serve(test)
    assert not caplog.records


def test_stopping_an_idle_server_is_quick_and_refuses_connections() -> None:
    async def test(served: Served) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        await asyncio.sleep(0)
        started = time.monotonic()
        await served.server.stop()
        assert time.monotonic() - started < 2
        with pytest.raises(OSError, match="Connect call failed|refused"):
            await asyncio.open_connection("127.0.0.1", served.port)
        writer.close()

    serve(test)


def test_stopping_what_was_never_started() -> None:
    async def test() -> None:
        with bind(GatewayConfig(port=0)) as listener:
            await HttpServer(Front(), listener, GatewayConfig(max_header_bytes=4096)).stop()

    asyncio.run(test())
