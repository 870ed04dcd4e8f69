"""Many requests at once, how far they have come, and what became of each."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from chaos_client import Answer, ask
from chaos_requests import MixedRequest
from e2e_process import ServerProcess

LOAD_SECONDS = 400.0


@dataclass(slots=True)
class Progress:
    """Events of all streams so far, and requests that have not ended."""

    num_events: int = 0
    num_open: int = 0

    def count(self) -> None:
        self.num_events += 1


@dataclass(frozen=True, slots=True)
class Load:
    """``late``: after how many events of the others a request is sent; 0 for those that are sent at once."""

    requests: Sequence[MixedRequest]
    late: Sequence[int]

    def run(
        self, server: ServerProcess, conduct: "Callable[[Progress], Coroutine[Any, Any, None]] | None" = None
    ) -> tuple[list[Answer], int]:
        """The answers in order, and how many events there were. ``conduct`` runs beside them."""
        return asyncio.run(self._run(server, conduct))

    async def _run(
        self, server: ServerProcess, conduct: "Callable[[Progress], Coroutine[Any, Any, None]] | None"
    ) -> tuple[list[Answer], int]:
        progress = Progress(num_open=len(self.requests))

        async def one(request: MixedRequest, after: int) -> Answer:
            try:
                # The last of the others may end sooner than that.
                while progress.num_events < after and progress.num_open > self._num_late:
                    await asyncio.sleep(0.005)
                return await ask(server, request.path, request.body, progress.count)
            finally:
                progress.num_open -= 1

        async with asyncio.timeout(LOAD_SECONDS), asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(*each)) for each in zip(self.requests, self.late, strict=True)]
            if conduct is not None:
                group.create_task(conduct(progress))
        return [task.result() for task in tasks], progress.num_events

    @property
    def _num_late(self) -> int:
        return sum(after > 0 for after in self.late)


def check_same(requests: Sequence[MixedRequest], found: Sequence[Answer], expected: Sequence[Answer]) -> None:
    """Nothing was lost, nothing came twice, nothing has changed, and everything has ended once."""
    different = []
    for index, (request, answer, other) in enumerate(zip(requests, found, expected, strict=True)):
        other.check_end()
        answer.check_end()
        if answer.outcome() != other.outcome():
            different.append((index, request.kind, request.body, answer.outcome(), other.outcome()))
    assert not different, (len(different), [kind for _, kind, *_ in different], different[0])
