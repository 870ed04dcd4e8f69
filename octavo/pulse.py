"""How well a gateway's process keeps up: how late its event loop is, what it holds for slow clients, what it uses."""

import asyncio
import time
from typing import Protocol

from observability.process import resident_bytes
from octavo.front import HttpServer

BEAT_SECONDS = 0.1
BEATS_A_REPORT = 5


class PulseMetrics(Protocol):
    """Where it is told (``observability.metrics.Metrics``)."""

    def observe_event_loop_lag(self, seconds: float) -> None: ...

    def set_gateway(
        self, *, num_connections: int, num_buffered_bytes: int, cpu_seconds: float, memory_bytes: int
    ) -> None: ...


class Pulse:
    """Beats on the running loop until ``stop``."""

    def __init__(self, server: HttpServer, metrics: PulseMetrics) -> None:
        self._server, self._metrics = server, metrics
        self._loop = asyncio.get_running_loop()
        self._num_beats = 0
        self._due = self._loop.time()
        self._timer = self._loop.call_at(self._due, self._beat)

    def stop(self) -> None:
        """No more beats."""
        self._timer.cancel()

    def _beat(self) -> None:
        now = self._loop.time()
        self._metrics.observe_event_loop_lag(max(0.0, now - self._due))
        if self._num_beats % BEATS_A_REPORT == 0:
            self._report()
        self._num_beats += 1
        self._due = now + BEAT_SECONDS
        self._timer = self._loop.call_at(self._due, self._beat)

    def _report(self) -> None:
        connections = self._server.server_state.connections
        self._metrics.set_gateway(
            num_connections=len(connections),
            num_buffered_bytes=sum(one.transport.get_write_buffer_size() for one in connections),
            cpu_seconds=time.process_time(),
            memory_bytes=resident_bytes(),
        )
