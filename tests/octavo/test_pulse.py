"""What a gateway says of its own process."""

import asyncio
import time
from types import SimpleNamespace
from typing import Any

from octavo.pulse import Pulse


class Told:
    def __init__(self) -> None:
        self.lags: list[float] = []
        self.reports: list[dict[str, Any]] = []

    def observe_event_loop_lag(self, seconds: float) -> None:
        self.lags.append(seconds)

    def set_gateway(self, **values: Any) -> None:
        self.reports.append(values)


def connection(num_bytes: int) -> Any:
    return SimpleNamespace(transport=SimpleNamespace(get_write_buffer_size=lambda: num_bytes))


def test_a_loop_that_is_held_up_is_late() -> None:
    async def work() -> Told:
        told = Told()
        server: Any = SimpleNamespace(server_state=SimpleNamespace(connections=[connection(5), connection(70)]))
        pulse = Pulse(server, told)
        while not told.lags:
            await asyncio.sleep(0)
        time.sleep(0.3)  # the next beat is due after a tenth of a second
        while len(told.lags) < 2:
            await asyncio.sleep(0)
        pulse.stop()
        return told

    told = asyncio.run(asyncio.wait_for(work(), 20))
    assert told.lags[1] >= 0.15
    (report,) = told.reports
    assert (report["num_connections"], report["num_buffered_bytes"]) == (2, 75)
    assert report["cpu_seconds"] > 0
    assert report["memory_bytes"] > 1_000_000
