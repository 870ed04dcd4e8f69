"""Heads of requests that are too long, too slow or no HTTP, on real sockets; TLS, with and without clients' own."""

import asyncio
import contextlib
import json
import ssl
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from ipc.config import GatewayConfig
from ipc.errors import ConfigError
from octavo import http_protocol
from octavo.front import Front, HttpServer, bind
from octavo.tls import make_tls

LIMIT = 4096
TLS = Path(__file__).with_name("tls")
CERT, KEY, ENCRYPTED = (str(TLS / name) for name in ("cert.pem", "key.pem", "encrypted.pem"))
GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"

Dialog = Callable[[int], Coroutine[Any, Any, None]]


async def answer(scope: Scope, receive: Receive, send: Send) -> None:
    """Reads the body, says its length."""
    size = 0
    while True:
        message = await receive()
        size += len(message.get("body", b""))
        if not message.get("more_body"):
            break
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"8")]})
    await send({"type": "http.response.body", "body": b"%8d" % size})


def serve(dialog: Dialog, tls: ssl.SSLContext | None = None, app: ASGIApp = answer, **options: Any) -> None:
    config = GatewayConfig(max_header_bytes=LIMIT, **options)

    async def run() -> None:
        with bind(GatewayConfig(port=0)) as listener:
            front = Front()
            front.app = app
            server = HttpServer(front, listener, config, tls)
            server.start()
            await asyncio.wait_for(dialog(listener.getsockname()[1]), 30)
            await server.stop()

    asyncio.run(run())


async def talk(port: int, *parts: bytes) -> bytes:
    """Everything that comes back until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for part in parts:
        writer.write(part)
        await writer.drain()
    try:
        return await reader.read(-1)
    finally:
        writer.close()


def error_of(response: bytes) -> tuple[int, dict[str, Any]]:
    head, _, body = response.partition(b"\r\n\r\n")
    assert b"connection: close" in head
    found: dict[str, Any] = json.loads(body)["error"]
    return int(head.split()[1]), found


@pytest.mark.parametrize(
    "request_head",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"x" * LIMIT + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"x" * 10 * LIMIT,  # without an end
        b"GET /" + b"x" * LIMIT + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"".join(b"A%d: x\r\n" % i for i in range(LIMIT)) + b"\r\n",
    ],
    ids=["value", "endless", "url", "many"],
)
def test_a_head_that_is_too_long(request_head: bytes) -> None:
    async def dialog(port: int) -> None:
        status, error = error_of(await talk(port, request_head))
        assert status == 431
        assert str(LIMIT) in error["message"]
        assert (await talk(port, GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))).endswith(b"       0")

    serve(dialog)


def test_bodies_and_later_requests_do_not_count() -> None:
    async def dialog(port: int) -> None:
        body = b"y" * 10 * LIMIT
        one = b"POST / HTTP/1.1\r\nHost: x\r\nA: %b\r\nContent-Length: %d\r\n\r\n%b" % (b"x" * 3000, len(body), body)
        last = one.replace(b"Host: x", b"Host: x\r\nConnection: close")
        response = await talk(port, one, one, last)
        assert response.count(b"%8d" % len(body)) == 3

    serve(dialog)


@pytest.mark.parametrize("data", [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"hello\r\n\r\n", b"\0" * 100])
def test_what_is_no_http(data: bytes) -> None:
    async def dialog(port: int) -> None:
        status, error = error_of(await talk(port, data))
        assert (status, error["type"]) == (400, "invalid_request_error")

    serve(dialog)


@pytest.mark.parametrize("parts", [(), (b"GET / HTTP/1.1\r\nHo",)])
def test_a_client_that_does_not_come_to_the_point(monkeypatch: pytest.MonkeyPatch, parts: tuple[bytes, ...]) -> None:
    monkeypatch.setattr(http_protocol, "HEAD_SECONDS", 0.05)

    async def dialog(port: int) -> None:
        assert error_of(await talk(port, *parts))[0] == 408

    serve(dialog)


def client_tls(with_certificate: bool = False) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=CERT)
    if with_certificate:
        context.load_cert_chain(CERT, KEY)
    return context


async def ask_over_tls(port: int, context: ssl.SSLContext) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="localhost")
    try:
        writer.write(GET)
        return await reader.readuntil(b"       0")
    finally:
        writer.close()


def test_tls() -> None:
    async def dialog(port: int) -> None:
        assert (await ask_over_tls(port, client_tls())).startswith(b"HTTP/1.1 200")
        assert not await talk(port, GET)  # what is no TLS learns nothing

    serve(dialog, make_tls(GatewayConfig(ssl_certfile=CERT, ssl_keyfile=KEY)))


def test_clients_that_must_show_a_certificate() -> None:
    async def dialog(port: int) -> None:
        assert (await ask_over_tls(port, client_tls(with_certificate=True))).startswith(b"HTTP/1.1 200")
        with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
            await ask_over_tls(port, client_tls())

    config = GatewayConfig(ssl_certfile=CERT, ssl_keyfile=KEY, ssl_ca_certs=CERT, ssl_cert_reqs="required")
    serve(dialog, make_tls(config))


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"ssl_keyfile": KEY}, "--ssl-keyfile: goes with --ssl-certfile"),
        ({"ssl_ca_certs": CERT}, "--ssl-ca-certs: goes with"),
        ({"ssl_certfile": "/no/such"}, "--ssl-certfile /no/such: .*No such file"),
        ({"ssl_certfile": CERT}, f"--ssl-certfile {CERT}: "),
        ({"ssl_certfile": __file__, "ssl_keyfile": KEY}, f"--ssl-certfile {__file__}, --ssl-keyfile {KEY}: "),
        ({"ssl_certfile": CERT, "ssl_keyfile": ENCRYPTED}, "--ssl-keyfile: the key is encrypted"),
        ({"ssl_certfile": CERT, "ssl_keyfile": KEY, "ssl_cert_reqs": "required"}, "needs --ssl-ca-certs"),
        ({"ssl_certfile": CERT, "ssl_keyfile": KEY, "ssl_ca_certs": "/no"}, "--ssl-ca-certs /no: "),
    ],
)
def test_files_that_do_not_work(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        make_tls(GatewayConfig(**options))


def test_no_tls() -> None:
    assert make_tls(GatewayConfig()) is None


@pytest.mark.parametrize("reads", [True, False])
def test_a_client_that_does_not_read(reads: bool) -> None:
    """One that reads slowly, but in less time than the limit from one bit to the next, is served to the end."""
    ended: list[str] = []

    async def large(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"connection", b"close")]})
        for _ in range(40):
            await send({"type": "http.response.body", "body": b"x" * 1_000_000, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
        ended.append("sent")
        assert (await receive())["type"] in ("http.request", "http.disconnect")
        ended.append((await receive())["type"])

    async def dialog(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=65536)
        writer.write(GET)
        await reader.readuntil(b"\r\n\r\n")
        size = 0
        if not reads:
            while "http.disconnect" not in ended:
                await asyncio.sleep(0.01)
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                size += len(data)
        assert (size > 40_000_000) == reads
        writer.close()

    serve(dialog, app=large, slow_client_timeout=0.5)
