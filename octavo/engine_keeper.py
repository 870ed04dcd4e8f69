"""Keeps an engine running: starts it, watches it, and starts another when it has died or hangs (design 8).

What a dead engine leaves behind for its successor is the client's business (``gateway.engine_client``), the processes
and how often they may die this one's.
"""

import asyncio
import contextlib
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import structlog
import zmq

from gateway.engine_client import EngineClient
from gateway.engine_connection import EngineConnection
from ipc.config import EngineConfig, FaultConfig
from ipc.errors import EngineError
from ipc.journal import read_journal
from octavo.child_process import ChildProcess
from octavo.engine_process import start_engine
from octavo.liveness import Liveness
from octavo.restart_limit import RestartLimit
from octavo.start_retries import StartRetries

CHECK_SECONDS = 0.5
LATE_SECONDS = 1.0  # by which a check comes too late where this process did not run
REFUSED_STATUS = 2  # the engine has said what is wrong with its configuration
SIGNALS_OF_OTHERS = (signal.SIGKILL, signal.SIGTERM)

log = structlog.get_logger("octavo")


@dataclass(frozen=True, slots=True)
class Death:
    """How an engine ended. ``status``: of the process, negative for a signal; it is that of the kill if it hung."""

    status: int
    was_hung: bool = False

    @property
    def reason(self) -> str:
        """For the log."""
        if self.was_hung:
            return "it made no progress"
        return f"signal {signal.Signals(-self.status).name}" if self.status < 0 else f"status {self.status}"

    @property
    def may_come_from_outside(self) -> bool:
        """Somebody may have sent the signal."""
        return self.was_hung or -self.status in SIGNALS_OF_OTHERS


class EngineKeeper:
    """``make_config``: of an incarnation, numbered from 1. ``on_restart`` is told which one another takes the place of.

    Lives in the task that it makes, which ends when there will be no engine any more and every request was told: with 2
    if the first one refused its configuration, else 1; with 0 after ``stop``.
    """

    def __init__(
        self,
        config: FaultConfig,
        client: EngineClient,
        context: zmq.Context[zmq.Socket[bytes]],
        make_config: Callable[[int], EngineConfig],
        on_restart: Callable[[int], None],
    ) -> None:
        self._config, self._client, self._context = config, client, context
        self._make_config, self._on_restart = make_config, on_restart
        self._limit = RestartLimit(config.engine_max_restarts)
        self._retries = StartRetries(config.engine_start_timeout)
        self._stopping = asyncio.Event()
        self._engine: ChildProcess | None = None
        self.task = asyncio.create_task(self._run())

    async def drain(self) -> None:
        """Let the engine end by itself, for what it writes then is of use to the next; nothing runs any more."""
        self._stopping.set()
        self._client.drain()
        await asyncio.wait((self.task,))

    async def stop(self) -> None:
        """End the engine there is, and start none any more."""
        self._stopping.set()
        if self._engine is not None:
            await self._engine.kill()
        await self.task

    async def _run(self) -> int:
        incarnation = 0
        while not self._stopping.is_set():
            incarnation += 1
            config = self._make_config(incarnation)
            try:
                self._engine = await self._start(config)
            except (OSError, zmq.ZMQError) as error:
                if not self._client.is_ready:
                    raise  # nobody waits for it
                if await self._may_try_again(str(error), incarnation):
                    continue
                self._client.disconnect(EngineError(f"no engine could be started: {error}", code="engine_died"))
                return 1
            self._retries.succeed()
            if self._stopping.is_set():
                break
            death = await self._watch(self._engine)
            if self._stopping.is_set():
                break
            has_served = incarnation > 1 or self._client.is_connected
            if not has_served and death.status == REFUSED_STATUS:  # it has said why
                return REFUSED_STATUS
            log.error("the engine ended", reason=death.reason, incarnation=incarnation)
            # One that could not even start would not start a second time either.
            if not has_served or not self._may_go_on(death, config):
                self._client.disconnect(EngineError("the engine died", code="engine_died"))
                return 1
            self._on_restart(incarnation)
        return 0

    # ---- one incarnation

    async def _start(self, config: EngineConfig) -> ChildProcess:
        """It runs and is listened to, unless all is to stop: then it is ended already. Raises OSError or ZMQError where
        the system has no files, processes or memory for it now."""
        engine = await start_engine(config)
        try:
            if not self._stopping.is_set():
                self._client.connect(EngineConnection(self._context, config.transport, self._client.loop))
                return engine
        except zmq.ZMQError:
            await engine.kill()
            raise
        await engine.kill()
        return engine

    async def _may_try_again(self, reason: str, incarnation: int) -> bool:
        """After a while: what the system lacks now, it may have then."""
        pause, is_news = self._retries.fail(self._client.loop.time(), reason)
        if is_news or pause is None:
            log.error("no engine could be started", reason=reason, incarnation=incarnation, pause=pause)
        self._client.explain_outage(f"no engine can be started: {reason}")
        if pause is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause)
        return pause is not None

    async def _watch(self, engine: ChildProcess) -> Death:
        """Until it has ended or hangs; it is reaped then, so that its successor is alone."""
        ended, hung = asyncio.create_task(engine.wait()), asyncio.create_task(self._until_hung())
        try:
            await asyncio.wait((ended, hung), return_when=asyncio.FIRST_COMPLETED)
            was_hung = not ended.done()
            await engine.kill()
            return Death(await ended, was_hung)
        finally:
            ended.cancel()
            hung.cancel()

    async def _until_hung(self) -> None:
        """Starting may take long and says nothing on the way; from then on the beats are judged."""
        loop, client = asyncio.get_running_loop(), self._client
        started = loop.time()
        while not client.is_connected:
            await asyncio.sleep(CHECK_SECONDS)
            if loop.time() - started > self._config.engine_start_timeout:
                return
        checked = loop.time()
        liveness = Liveness(self._config.engine_heartbeat_timeout, checked)
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            now = loop.time()
            if now - checked > CHECK_SECONDS + LATE_SECONDS:
                liveness.excuse(now)
            checked = now
            liveness.observe(client.last_beat, now)
            if liveness.is_hung(now):
                return

    def _may_go_on(self, death: Death, config: EngineConfig) -> bool:
        """Whether another one is started; the client has taken in what this one leaves."""
        was_ready = self._client.is_connected
        journal = {} if config.journal is None else read_journal(Path(config.journal))
        verdict = self._client.lose(journal, was_killed=death.may_come_from_outside)
        now = self._client.loop.time()
        return self._limit.allows(now, counts=not verdict.is_narrowed, made_progress=was_ready)
