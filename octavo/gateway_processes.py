"""Several gateway processes on one port: starts them, deals connections out to them, and replaces one that has died.

The engine's client and the desk stay in this process: to a gateway it is the engine (``gateway.relay``).
"""

import asyncio
import contextlib
import itertools
import math
import socket
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import structlog
import zmq

from gateway.desk import FrontDesk
from gateway.engine_client import EngineClient
from gateway.relay import Relay
from ipc.desk import (
    Answer,
    Close,
    Collect,
    Load,
    MetricValues,
    Outage,
    Phase,
    Question,
    Report,
    Serving,
    Stop,
    ToDesk,
    ToGatewayProcess,
    Unusable,
)
from ipc.errors import ConfigError, EngineError
from ipc.messages import Hello, Profile, Ready
from observability.metrics import Metrics
from octavo.child_process import ChildProcess
from octavo.connection_passing import ConnectionDealer, make_channel, receive_connections
from octavo.desk_socket import DeskSocket
from octavo.gateway_process import GatewayProcessConfig
from octavo.options import ServeConfig
from octavo.restart_limit import RestartLimit
from octavo.start_retries import StartRetries
from octavo.tls import make_tls

RESTARTS_EACH = 5
"""Gateways started anew in ten minutes, for each that there is, before the server gives up."""

SILENT_SECONDS = 2.0  # of a gateway that gets no new connections
COLLECT_SECONDS = 0.5  # in which a gateway says what it has counted; else what it said last counts
STOP_SECONDS = 8.0  # in which a gateway ends that was told to

log = structlog.get_logger("octavo")


@dataclass(slots=True, eq=False)
class Member:
    """One gateway process. ``channel``: for its connections, our end and its own."""

    identity: bytes
    relay: Relay
    channel: tuple[socket.socket, socket.socket]
    is_joined: bool = False
    is_serving: bool = False
    has_engine: bool = False
    heard: float = 0.0
    values: MetricValues = ()
    collected: int = 0
    outage: str = ""
    news: asyncio.Event = field(default_factory=asyncio.Event)


class GatewayProcesses:
    """Implements ``own_gateway.Gateway``. Raises ConfigError for a certificate that does not work."""

    def __init__(
        self,
        config: ServeConfig,
        listener: socket.socket,
        directory: Path,
        context: zmq.Context[zmq.Socket[bytes]],
        client: EngineClient,
        desk: FrontDesk,
        metrics: Metrics,
    ) -> None:
        make_tls(config.gateway)
        self._config, self._client, self._desk, self._metrics = config, client, desk, metrics
        self._loop = asyncio.get_running_loop()
        self._socket = DeskSocket(context, self._loop, directory, self._receive)
        self._dealer = ConnectionDealer(self._loop, listener, self._channels)
        self._members: dict[bytes, Member] = {}
        self._numbers, self._visits, self._collections = itertools.count(1), itertools.count(1), itertools.count(1)
        self._limit = RestartLimit(RESTARTS_EACH * config.gateway.api_server_count)
        self._phase, self._folder = "beginning", ""
        self._loaded: asyncio.Future[None] = self._loop.create_future()
        self._stopping = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    # ---- what the supervisor wants

    def start(self) -> "asyncio.Task[None]":
        """See ``own_gateway.Gateway``."""
        self._dealer.start()
        self._task = asyncio.create_task(self._run())
        return self._task

    def begin(self, phase: str) -> None:
        """See ``own_gateway.Gateway``."""
        self._phase = phase
        self._tell_all(Phase(phase))

    async def load(self, folder: Path) -> None:
        """See ``own_gateway.Gateway``: one gateway at least knows it. The others have no connections until they do."""
        self._folder = str(folder)
        self._tell_all(Load(self._folder))
        await self._loaded

    def be_ready(self, ready: Ready) -> None:
        """See ``own_gateway.Gateway``."""
        for member in self._members.values():
            self._introduce(member)

    def close(self) -> None:
        """See ``own_gateway.Gateway``."""
        self._tell_all(Close())

    async def stop(self) -> None:
        """See ``own_gateway.Gateway``."""
        self._stopping.set()
        self._dealer.close()
        self._tell_all(Stop())
        await asyncio.wait({self._task})
        self._socket.close()

    # ---- the processes

    async def _run(self) -> None:
        keepers = [asyncio.create_task(self._keep()) for _ in range(self._config.gateway.api_server_count)]
        try:
            await asyncio.wait(keepers, return_when=asyncio.FIRST_COMPLETED)
            for keeper in keepers:
                if keeper.done():
                    keeper.result()
        finally:
            self._stopping.set()
            self._tell_all(Stop())
            await asyncio.wait(keepers)

    async def _keep(self) -> None:
        """One gateway and its successors. Raises OSError if the first cannot be started."""
        is_first, retries = True, StartRetries(math.inf)
        while not self._stopping.is_set():
            try:
                status = await self._live()
            except (OSError, zmq.ZMQError) as error:
                if is_first:
                    raise
                pause, is_news = retries.fail(self._loop.time(), str(error))
                assert pause is not None
                if is_news:
                    log.error("no gateway could be started", reason=str(error), pause=pause)
                await self._pause(pause)
                continue
            retries.succeed()
            if self._stopping.is_set():
                return
            is_first = False
            log.error("a gateway ended", status=status)
            if not self._limit.allows(self._loop.time(), counts=True, made_progress=True):
                log.error("gateways end again and again")
                return

    async def _live(self) -> int:
        """One process from start to end; its exit status."""
        identity = f"gateway-{next(self._numbers)}".encode()
        channel = make_channel()
        relay = Relay(self._client, self._desk, lambda message: self._socket.send(identity, message), self._visits)
        member = Member(identity, relay, channel)
        config = GatewayProcessConfig(
            serve=self._config, endpoint=self._socket.endpoint, identity=identity.decode(), channel=channel[1].fileno()
        )
        try:
            process = await ChildProcess.start("octavo.gateway_process", config, (channel[1].fileno(),))
            self._members[identity] = member
            if self._stopping.is_set():
                self._socket.send(identity, Stop())
            return await self._watch(process)
        finally:
            self._members.pop(identity, None)
            member.news.set()
            self._bury(member)

    async def _watch(self, process: ChildProcess) -> int:
        ended, stopping = asyncio.create_task(process.wait()), asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait((ended, stopping), return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait((ended,), timeout=STOP_SECONDS)
            await process.kill()
            return await ended
        finally:
            ended.cancel()
            stopping.cancel()

    def _bury(self, member: Member) -> None:
        """What it has counted stays, what it served is given up, and connections that it had not taken are another's.

        Its end of the channel is open here, too, for just that.
        """
        member.relay.end()
        self._metrics.add(member.values)
        ours, theirs = member.channel
        for connection in receive_connections(theirs):
            if not self._dealer.deal(connection):
                connection.close()
        ours.close()
        theirs.close()

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)

    def _channels(self) -> Sequence[socket.socket]:
        """Of those that answer and know as much as any; of all, where none answers."""
        joined = [member for member in self._members.values() if member.is_joined]
        if self._loaded.done():
            joined = [member for member in joined if member.is_serving]
        recently = self._loop.time() - SILENT_SECONDS
        lively = [member for member in joined if member.heard > recently]
        return [member.channel[0] for member in lively or joined]

    # ---- messages

    def _tell_all(self, message: ToGatewayProcess) -> None:
        for member in self._members.values():
            if member.is_joined:
                self._socket.send(member.identity, message)

    def _receive(self, identity: bytes, message: ToDesk) -> None:
        member = self._members.get(identity)
        if member is None:  # it has died meanwhile
            return
        member.heard = self._loop.time()
        match message:
            case Hello():
                self._join(member)
            case Report():
                member.values = message.values
                member.collected = max(member.collected, message.number)
                member.news.set()
                self._tell_of_outage()
            case Serving():
                member.is_serving = True
                if not self._loaded.done():
                    self._loaded.set_result(None)
            case Unusable():
                if not self._loaded.done():
                    self._loaded.set_exception(ConfigError(message.message))
            case Question():
                self._answer(member, message)
            case _:
                member.relay.receive(message)

    def _join(self, member: Member) -> None:
        """It has connected: what the others know."""
        member.is_joined = True
        self._socket.send(member.identity, Phase(self._phase))
        if self._folder:
            self._socket.send(member.identity, Load(self._folder))
        self._introduce(member)
        if self._desk.is_draining:
            self._socket.send(member.identity, Close())
        if self._stopping.is_set():
            self._socket.send(member.identity, Stop())

    def _introduce(self, member: Member) -> None:
        """Once there is an engine. One that comes in its place is none of a gateway's business."""
        if member.is_joined and not member.has_engine and self._client.is_ready:
            member.has_engine = True
            self._socket.send(member.identity, msgspec.structs.replace(self._client.ready, incarnation=0))

    def _tell_of_outage(self) -> None:
        """Whether there is an engine is not seen from a gateway: its readiness needs to be told."""
        reason = ""
        try:
            self._client.check_outage()
        except EngineError as error:
            reason = error.message
        for member in self._members.values():
            if member.has_engine and reason != member.outage:
                member.outage = reason
                self._socket.send(member.identity, Outage(reason))

    def _answer(self, member: Member, question: Question) -> None:
        match question.about:
            case "usage":
                self._socket.send(member.identity, Answer(question.number, self._desk.usage()))
            case "requests":
                self._socket.send(member.identity, Answer(question.number, self._desk.requests()))
            case "drain":
                num_in_flight = self._desk.drain()
                self.close()
                self._socket.send(member.identity, Answer(question.number, str(num_in_flight).encode()))
            case "metrics":
                self._begin(self._send_metrics(member, question.number))
            case "profile" if question.message is not None:
                self._begin(self._send_profile(member, question.number, question.message))

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send_profile(self, asker: Member, number: int, message: Profile) -> None:
        answer = await self._desk.profile(message)
        self._socket.send(asker.identity, Answer(number, msgspec.msgpack.encode(answer)))

    async def _send_metrics(self, asker: Member, number: int) -> None:
        """What all have counted by now."""
        collection = next(self._collections)
        self._tell_all(Collect(collection))
        deadline = self._loop.time() + COLLECT_SECONDS
        for member in list(self._members.values()):
            while member.is_joined and member.collected < collection and member.identity in self._members:
                member.news.clear()
                try:
                    async with asyncio.timeout_at(deadline):
                        await member.news.wait()
                except TimeoutError:
                    break
        self._desk.publish()
        text = self._metrics.render([member.values for member in self._members.values()])
        self._socket.send(asker.identity, Answer(number, text))
