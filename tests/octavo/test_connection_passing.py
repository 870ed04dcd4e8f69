"""New connections dealt out: in turn, none lost while nobody can take them, none to who is gone."""

import asyncio
import errno
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from octavo.connection_passing import ConnectionDealer, make_channel, receive_connections

Channel = tuple[socket.socket, socket.socket]


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(tmp_path / "socket"))
        one.listen(512)
        yield one


@pytest.fixture
def channels() -> Iterator[list[Channel]]:
    made = [make_channel() for _ in range(3)]
    yield made
    for pair in made:
        for end in pair:
            end.close()


def connect(listener: socket.socket, count: int) -> list[socket.socket]:
    clients = []
    for number in range(count):
        client = socket.socket(socket.AF_UNIX)
        client.connect(listener.getsockname())
        client.sendall(number.to_bytes(2, "little"))
        clients.append(client)
    return clients


def run(work: Any) -> None:
    asyncio.run(asyncio.wait_for(work, 20))


def taken(channel: Channel) -> list[int]:
    """The numbers that the clients sent whose connections came through the channel."""
    numbers = []
    for connection in receive_connections(channel[1]):
        with connection:
            connection.setblocking(True)
            numbers.append(int.from_bytes(connection.recv(2), "little"))
    return numbers


async def gather(channels: list[Channel], count: int) -> list[list[int]]:
    """Until so many have come in all."""
    found: list[list[int]] = [[] for _ in channels]
    while sum(map(len, found)) < count:
        await asyncio.sleep(0.001)
        for numbers, channel in zip(found, channels, strict=True):
            numbers += taken(channel)
    return found


def test_in_turn(listener: socket.socket, channels: list[Channel]) -> None:
    async def work() -> None:
        dealer = ConnectionDealer(asyncio.get_running_loop(), listener, lambda: [ours for ours, _ in channels])
        clients = connect(listener, 200)
        dealer.start()
        dealer.start()
        found = await gather(channels, 200)
        assert found == [list(range(first, 200, 3)) for first in range(3)]
        dealer.close()
        late = connect(listener, 1)
        await asyncio.sleep(0)
        assert [taken(channel) for channel in channels] == [[], [], []]
        for client in clients + late:
            client.close()

    run(work())


def test_they_wait_while_there_is_nobody(listener: socket.socket, channels: list[Channel]) -> None:
    async def work() -> None:
        present: list[socket.socket] = []
        dealer = ConnectionDealer(asyncio.get_running_loop(), listener, lambda: present)
        dealer.start()
        clients = connect(listener, 5)
        await asyncio.sleep(0)
        present.append(channels[0][0])
        assert await gather(channels, 5) == [[0, 1, 2, 3, 4], [], []]
        dealer.close()
        for client in clients:
            client.close()

    run(work())


def test_more_than_a_channel_holds(listener: socket.socket, channels: list[Channel]) -> None:
    """The one that finds it full is kept, and comes before those after it."""

    async def work() -> None:
        ours, _ = channels[0]
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # the least that the system allows
        dealer = ConnectionDealer(asyncio.get_running_loop(), listener, lambda: [ours])
        clients = connect(listener, 100)
        dealer.start()
        while dealer._held is None:
            await asyncio.sleep(0)
        assert await gather(channels[:1], 100) == [list(range(100))]
        dealer.close()
        for client in clients:
            client.close()

    run(work())


def test_a_process_that_is_gone_is_passed_over(listener: socket.socket, channels: list[Channel]) -> None:
    async def work() -> None:
        channels[1][1].close()
        dealer = ConnectionDealer(asyncio.get_running_loop(), listener, lambda: [ours for ours, _ in channels])
        clients = connect(listener, 6)
        dealer.start()
        first, last = await gather([channels[0], channels[2]], 6)
        assert sorted(first + last) == list(range(6))
        dealer.close()
        for client in clients:
            client.close()

    run(work())


def test_for_want_of_file_descriptors_they_wait(
    listener: socket.socket, channels: list[Channel], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Short:
        """The listener of a process that has no file descriptor left, twice."""

        num_failed = 0

        def __getattr__(self, name: str) -> Any:
            return getattr(listener, name)

        def accept(self) -> Any:
            if self.num_failed < 2:
                self.num_failed += 1
                raise OSError(errno.EMFILE, "Too many open files")
            return listener.accept()

    async def work() -> None:
        monkeypatch.setattr("octavo.connection_passing.PAUSE_SECONDS", 0.001)
        short: Any = Short()
        dealer = ConnectionDealer(asyncio.get_running_loop(), short, lambda: [channels[0][0]])
        dealer.start()
        clients = connect(listener, 3)
        assert await gather(channels[:1], 3) == [[0, 1, 2]]
        assert short.num_failed == 2
        dealer.close()
        for client in clients:
            client.close()

    run(work())
