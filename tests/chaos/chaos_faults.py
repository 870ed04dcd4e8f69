"""What can happen to the processes of a server.

Each fault returns when the server is on its way again, with the number of engines that it has cost.
"""

import asyncio
import random
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from chaos_load import Progress
from chaos_server import HEARTBEAT_SECONDS, PATIENCE, ChaosServer, kill, wait_gone


@dataclass(frozen=True, slots=True)
class Scene:
    """Where a fault happens. ``progress`` tells whether anybody is still served."""

    server: ChaosServer
    dice: random.Random
    progress: Progress


async def kill_engine(scene: Scene) -> int:
    """SIGKILL, at any moment of a step."""
    pid = await _engine(scene)
    await asyncio.sleep(scene.dice.random() * 0.1)
    kill(pid)
    await _engine(scene, other_than=pid)
    return 1


async def kill_successor(scene: Scene) -> int:
    """SIGKILL, and once more while the next engine starts."""
    first = await _engine(scene)
    kill(first)
    second = await _engine(scene, other_than=first)
    await asyncio.sleep(scene.dice.random() * 2)
    kill(second)
    await _engine(scene, other_than=second)
    return 2


async def abort_engine(scene: Scene) -> int:
    """It dies of a signal that only a bug of its own sends."""
    pid = await _engine(scene)
    kill(pid, signal.SIGABRT)
    await _engine(scene, other_than=pid)
    return 1


async def stop_engine(scene: Scene) -> int:
    """SIGSTOP without an end: it is as good as dead."""
    pid = await _engine(scene)
    kill(pid, signal.SIGSTOP)
    await asyncio.to_thread(wait_gone, pid)
    return 1


async def hang_engine(scene: Scene) -> int:
    """Its loop stands still within a step while it beats as before."""
    pid = await _engine(scene)
    scene.server.hang_next_step()
    while scene.server.is_about_to_hang and scene.progress.num_open:
        await asyncio.sleep(0.01)
    if not scene.server.is_about_to_hang:
        await asyncio.to_thread(wait_gone, pid)
        return 1
    (scene.server.folder / "hang").unlink()  # nobody needed a step any more: it must not happen to somebody else
    return 0


async def pause_engine(scene: Scene) -> int:
    """SIGSTOP, and SIGCONT before anybody may call it dead."""
    pid = await _engine(scene)
    await _pause(pid, scene.dice.random() * HEARTBEAT_SECONDS / 3)
    return 0


async def pause_gateway(scene: Scene) -> int:
    """It stands still for longer than it waits for an engine: that is no reason to replace one."""
    await _pause(scene.server.pid, scene.dice.choice([0.5, HEARTBEAT_SECONDS * 1.3]))
    return 0


async def pause_both(scene: Scene) -> int:
    """As when a laptop sleeps; they wake up one after the other."""
    engine, seconds = await _engine(scene), scene.dice.random() * HEARTBEAT_SECONDS
    kill(engine, signal.SIGSTOP)
    await _pause(scene.server.pid, seconds)
    kill(engine, signal.SIGCONT)
    return 0


async def kill_engine_behind_gateway(scene: Scene) -> int:
    """It dies while the gateway stands still, with outputs that nobody has read."""
    pid = await _engine(scene)
    kill(scene.server.pid, signal.SIGSTOP)
    await asyncio.sleep(scene.dice.random() * 0.5)
    kill(pid)
    await asyncio.sleep(0.1)
    kill(scene.server.pid, signal.SIGCONT)
    await _engine(scene, other_than=pid)
    return 1


Fault = Callable[[Scene], Awaitable[int]]
FAULTS: tuple[Fault, ...] = (
    kill_engine,
    kill_successor,
    abort_engine,
    stop_engine,
    hang_engine,
    pause_engine,
    pause_gateway,
    pause_both,
    kill_engine_behind_gateway,
)


async def recovered(scene: Scene) -> None:
    """Some stream goes on, unless all have ended."""
    before = scene.progress.num_events
    async with asyncio.timeout(PATIENCE):
        while scene.progress.num_open and scene.progress.num_events == before:
            await asyncio.sleep(0.01)


async def _engine(scene: Scene, other_than: int | None = None) -> int:
    return await asyncio.to_thread(scene.server.wait_engine, other_than=other_than)


async def _pause(pid: int, seconds: float) -> None:
    kill(pid, signal.SIGSTOP)
    try:
        await asyncio.sleep(seconds)
    finally:
        kill(pid, signal.SIGCONT)
