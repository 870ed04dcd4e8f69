"""Telling whoever reads outputs that there are new ones: a listener that is called, or a task that waits.

One thread only, the event loop's.
"""

import asyncio
from collections.abc import Callable


class Notifier:
    """Many may notify; one listens, or one waits. It is told that there may be news, not which: it looks itself.

    ``listener`` is called at once, by the one who has the news: it must not raise.
    """

    __slots__ = ("_waiter", "listener")

    def __init__(self) -> None:
        self._waiter: asyncio.Future[None] | None = None
        self.listener: Callable[[], None] | None = None

    def wait(self) -> "asyncio.Future[None]":
        """To be awaited at once: done with the next ``notify``. What was notified before does not count."""
        self._waiter = asyncio.get_running_loop().create_future()
        return self._waiter

    def notify(self) -> None:
        """There may be news."""
        if self.listener is not None:
            self.listener()
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():  # it is done if the one who waited was cancelled
            waiter.set_result(None)
