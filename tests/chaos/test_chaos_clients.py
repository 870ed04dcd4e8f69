"""Clients that misbehave beside others that do not: they harm nobody, and what they held is free afterwards."""

import asyncio
import contextlib
import random
import socket
import struct
from collections.abc import AsyncIterator

from chaos_client import request_bytes
from chaos_load import Load, Progress, check_same
from chaos_requests import COMP, mixed_requests
from chaos_server import ChaosServer, kill
from e2e_process import resident_bytes

NUM_GOOD = 32
NUM_BAD = 16
MOST_GROWTH = 64 * 2**20  # of the gateway, by clients that read nothing
LONG = {"model": "tiny", "prompt": "On and on", "max_tokens": 2000, "ignore_eos": True, "stream": True, "logprobs": 5}


@contextlib.asynccontextmanager
async def connected(
    server: ChaosServer, data: bytes, receive_buffer: int | None = None
) -> AsyncIterator[socket.socket]:
    """A connection on which ``data`` was sent; reset at the end, as by a client that dies."""
    loop = asyncio.get_running_loop()
    with socket.socket() as connection:
        connection.setblocking(False)
        if receive_buffer is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        await loop.sock_connect(connection, ("127.0.0.1", server.port))
        with contextlib.suppress(ConnectionError):  # it may be refused before all is sent
            await loop.sock_sendall(connection, data)
        yield connection
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


async def vanish(server: ChaosServer, dice: random.Random) -> None:
    """Leaves before, while or after it is answered, or in the middle of its own request."""
    data = request_bytes(COMP, {**LONG, "seed": dice.randrange(1000), "n": dice.choice([1, 2])})
    if dice.random() < 0.3:
        data = data[: dice.randrange(len(data))]
    async with connected(server, data) as connection:
        if dice.random() < 0.7:
            with contextlib.suppress(TimeoutError, ConnectionError):
                async with asyncio.timeout(dice.random() * 2):
                    while await asyncio.get_running_loop().sock_recv(connection, 4096):
                        pass


async def stall(server: ChaosServer, progress: Progress) -> None:
    """Asks for much and reads nothing as long as the others are there."""
    async with connected(server, request_bytes(COMP, LONG), receive_buffer=2048):
        while progress.num_open:
            await asyncio.sleep(0.05)


def garbage(dice: random.Random) -> bytes:
    """What no client of ours would send."""
    noise = dice.randbytes(dice.choice([1, 100, 20_000]))
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    return dice.choice(
        [
            noise,
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + noise,  # TLS
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + noise,
            head + b"Content-Length: 500\r\n\r\n" + noise[:500],
            head + b"Content-Length: -1\r\n\r\n{}",
            head + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n" + noise,
            head + b"Transfer-Encoding: chunked\r\n\r\n5\r\n{\"a\":\r\nffffffff\r\n" + noise,
            head + b"X: " + b"y" * 200_000 + b"\r\n\r\n",
            head + b"Content-Length: 20\r\n\r\n" + b"\xff" * 20,
            request_bytes(COMP, b"[" * 20_000),
            request_bytes(COMP, b'{"model": "tiny", "prompt": "' + noise + b'"}'),
        ]
    )  # fmt: skip


async def send_garbage(server: ChaosServer, dice: random.Random) -> None:
    """Sends it and waits a moment, whether it is answered or not."""
    async with connected(server, garbage(dice)) as connection:
        with contextlib.suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(dice.random() * 0.5):
                while await asyncio.get_running_loop().sock_recv(connection, 4096):
                    pass


def test_clients_that_misbehave_harm_nobody(server: ChaosServer, dice: random.Random, seed: int) -> None:
    """They vanish, stall and send garbage, and in between the engine is killed."""
    requests = mixed_requests(seed, NUM_GOOD, 80)
    expected, num_events = Load(requests, [0] * NUM_GOOD).run(server)
    server.check_whole()
    before = resident_bytes(server.pid)

    async def conduct(progress: Progress) -> None:
        async def again(visit: str) -> None:
            while progress.num_open:
                await (vanish(server, dice) if visit == "vanish" else send_garbage(server, dice))

        async def kill_once() -> None:
            while progress.num_events < num_events // 3:
                await asyncio.sleep(0.005)
            kill(await asyncio.to_thread(server.wait_engine))

        async with asyncio.TaskGroup() as group:
            group.create_task(kill_once())
            for _ in range(NUM_BAD // 4):
                group.create_task(again("vanish"))
                group.create_task(again("garbage"))
            for _ in range(NUM_BAD // 2):
                group.create_task(stall(server, progress))

    answers, _ = Load(requests, [0] * NUM_GOOD).run(server, conduct)
    check_same(requests, answers, expected)
    server.check_whole()
    assert resident_bytes(server.pid) - before < MOST_GROWTH
