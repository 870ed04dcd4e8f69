"""Starting a coroutine in the caller's own turn of the loop: most calls of an ASGI ``send`` never wait.

What Python 3.12 calls an eager task (``asyncio.Task(..., eager_start=True)``), for 3.11 too.
"""

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any


def start_eagerly(coroutine: Coroutine[Any, Any, None]) -> "asyncio.Task[None] | None":
    """Runs it as far as it gets without waiting. None: it is over; else the task that does the rest."""
    try:
        awaited = coroutine.send(None)
    except StopIteration:
        return None
    return asyncio.create_task(_Started(coroutine, awaited))


class _Started(Coroutine[Any, Any, None]):
    """The coroutine, handing out once more what it waits for, to the task that is to wait."""

    def __init__(self, coroutine: Coroutine[Any, Any, None], awaited: Any) -> None:
        self._coroutine = coroutine
        self._awaited = [awaited]

    def send(self, value: Any) -> Any:
        return self._awaited.pop() if self._awaited else self._coroutine.send(value)

    def throw(self, *error: Any) -> Any:
        return self._coroutine.throw(*error)

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, None]:
        return self._coroutine.__await__()
