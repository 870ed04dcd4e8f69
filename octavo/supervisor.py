"""``octavo serve``: binds the port, starts the engine, is the gateway, and ends both in order.

Owns processes and signals. With one gateway it is that gateway: one event loop, one process, and one engine.
What only the gateway needs is imported while the engine, which takes longer, is starting.
"""

import asyncio
import json
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import structlog
import uvloop
import zmq

from gateway.desk import FrontDesk
from gateway.engine_client import EngineClient
from gateway.tenants import Tenants
from ipc.config import EngineConfig
from ipc.errors import EngineError
from ipc.messages import Ready, Stats, WaitReason
from observability.logging import configure
from observability.metrics import Metrics
from octavo.engine_keeper import EngineKeeper
from octavo.engine_process import SocketDirectory, make_engine_config
from octavo.front import address, bind
from octavo.gateway_processes import GatewayProcesses
from octavo.model_source import resolve_model
from octavo.options import ServeConfig
from octavo.own_gateway import Gateway, OwnGateway
from octavo.start_up import in_daemon_thread

KV_WRITE_SECONDS = 15.0  # for the disk tier, when nothing runs any more

log = structlog.get_logger("octavo")

T = TypeVar("T")


def serve(config: ServeConfig) -> int:
    """Serve until told to stop; the exit status. Raises ConfigError when something cannot work."""
    configure(config.gateway.log_level, json=config.observability.log_format == "json")
    listener = bind(config.gateway)
    try:
        with SocketDirectory() as directory, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(Supervisor(config, listener, directory).run())
    finally:
        listener.close()
        if config.gateway.uds is not None:
            Path(config.gateway.uds).unlink(missing_ok=True)


class Supervisor:
    """One server's life."""

    def __init__(self, config: ServeConfig, listener: socket.socket, directory: SocketDirectory) -> None:
        self._config, self._listener, self._directory = config, listener, directory
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._metrics = Metrics(config.observability.metrics_prefix, model_name=config.model_names[0])
        self._keeper: EngineKeeper | None = None
        self._signals = 0
        self._stop: asyncio.Future[None]
        self._stop_now: asyncio.Future[None]
        self._ready: asyncio.Future[Ready]

    async def run(self) -> int:
        """The exit status: 0 after a signal, 2 if the engine refused its configuration, 1 if there is none any more.
        Raises ConfigError."""
        loop = asyncio.get_running_loop()
        self._stop, self._stop_now, self._ready = loop.create_future(), loop.create_future(), loop.create_future()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal)
        self._client = EngineClient(loop, self._on_stats, self._on_ready)
        tenants = Tenants(self._config.tenants, self._config.gateway.api_key)
        self._desk = FrontDesk(self._config.gateway, tenants, self._client, self._metrics, int(time.time()))
        self._gateway = self._make_gateway()
        serving = self._gateway.start()
        try:
            return await self._run(serving)
        finally:
            self._client.disconnect(EngineError("the server is shutting down", code="shutting_down", status=503))
            await self._gateway.stop()
            if self._keeper is not None:
                await self._keeper.stop()
            self._context.destroy(linger=0)

    def _make_gateway(self) -> Gateway:
        config, listener = self._config, self._listener
        client, desk, metrics = self._client, self._desk, self._metrics
        if config.gateway.api_server_count == 1:
            return OwnGateway(config, listener, client, desk, metrics)
        return GatewayProcesses(config, listener, self._directory.path, self._context, client, desk, metrics)

    async def _run(self, serving: "asyncio.Task[None]") -> int:
        try:
            self._begin("looking for the model")
            folder = await self._unless_stopped(in_daemon_thread(lambda: resolve_model(self._config.model)))
            self._keeper = EngineKeeper(
                self._config.faults,
                self._client,
                self._context,
                lambda incarnation: self._engine_config(folder, incarnation),
                self._metrics.count_engine_restart,
            )
            died = self._keeper.task
            self._begin("loading the model")
            loading = asyncio.ensure_future(self._gateway.load(folder))
            await first_of(loading, serving, self._stop)
            if not serving.done():
                await self._unless_stopped(loading)
            await first_of(self._ready, died, self._stop, serving)
            if self._ready.done() and not self._stop.done():
                self._announce()
                await first_of(died, self._stop, serving)
            if self._stop.done():
                await self._drain(died)
                return 0
        except _Stopped:
            return 0
        if serving.done():
            serving.result()
            return 1
        return await died

    def _begin(self, phase: str) -> None:
        self._gateway.begin(phase)
        log.info("starting", phase=phase, model=self._config.model)

    # ---- parts

    def _engine_config(self, folder: Path, incarnation: int) -> EngineConfig:
        config = self._config
        return make_engine_config(
            msgspec.structs.replace(config.model_config, model=str(folder)),
            config.cache,
            config.scheduler,
            config.structured_output,
            directory=self._directory,
            incarnation=incarnation,
            # A step that was asked for by its number is the first engine's.
            profile=msgspec.structs.replace(config.profile, profile_step=None)
            if self._client.is_ready
            else config.profile,
            step_seconds=self._client.ready.step_seconds if self._client.is_ready else (),
            log_level=config.gateway.log_level,
            log_format=config.observability.log_format,
        )

    def _announce(self) -> None:
        """The line that says it works, and one to try it."""
        url, config = address(self._config.gateway, self._listener), self._config.gateway
        options = f"--unix-socket {config.uds} " if config.uds is not None else ""
        options += f"--cacert {config.ssl_certfile} " if config.ssl_certfile is not None else ""
        key = "-H 'Authorization: Bearer <one of your keys>' " if config.api_key or config.api_keys_file else ""
        question = {"role": "user", "content": "Name the capital of France."}
        body = json.dumps({"model": self._config.model_names[0], "messages": [question]})
        sys.stderr.write(
            f"octavo is ready: {url}\n"
            f"curl {options}{url}/v1/chat/completions {key}-H 'Content-Type: application/json' -d '{body}'\n"
        )
        sys.stderr.flush()

    # ---- what comes in

    def _on_ready(self, ready: Ready) -> None:
        if not self._ready.done():
            self._ready.set_result(ready)
        self._gateway.be_ready(ready)

    def _on_stats(self, stats: Stats) -> None:
        self._desk.observe(stats)
        self._metrics.count_resumed_requests(self._client.num_resumed)
        values = msgspec.structs.asdict(stats)
        self._metrics.engine.update(
            stats.incarnation,
            values,
            waiting_by_reason={WaitReason(reason).name.lower(): count for reason, count in stats.waiting_by_reason},
        )

    def _on_signal(self) -> None:
        """The first one drains, the second one ends at once."""
        self._signals += 1
        if not self._stop.done():
            self._stop.set_result(None)
        elif not self._stop_now.done():
            self._stop_now.set_result(None)

    # ---- the end

    async def _drain(self, died: "asyncio.Task[int]") -> None:
        """Not ready from now on; what runs may finish, until the timeout or a second signal."""
        self._desk.drain()
        self._gateway.close()
        timeout = self._config.gateway.shutdown_timeout
        if self._client.num_in_flight:
            log.info("shutting down", requests=self._client.num_in_flight, timeout=timeout)
        finished = asyncio.create_task(self._wait_until_finished())
        await first_of(finished, died, self._stop_now, timeout=timeout)
        finished.cancel()
        if self._config.cache.kv_disk_path is not None and self._keeper is not None and not self._client.num_in_flight:
            written = asyncio.create_task(self._keeper.drain())
            await first_of(written, self._stop_now, timeout=KV_WRITE_SECONDS)
            written.cancel()

    async def _wait_until_finished(self) -> None:
        while self._client.num_in_flight:
            await asyncio.sleep(0.02)

    async def _unless_stopped(self, work: "asyncio.Future[T]") -> T:
        await first_of(work, self._stop)
        if not work.done():
            raise _Stopped
        return work.result()


class _Stopped(Exception):
    """A signal came while the server was starting."""


async def first_of(*futures: "asyncio.Future[Any]", timeout: float | None = None) -> None:
    """Wait until one of them is done, whichever, or the time is up. None is cancelled."""
    await asyncio.wait(futures, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
