"""Noticing that the client is gone while its request is being worked on."""

import asyncio
from types import TracebackType

from starlette.types import Receive


class ClientDisconnected(Exception):
    """The client closed the connection; there is nobody to answer."""


class cancel_on_disconnect:
    """Within the block, the current task is cancelled as soon as the client is gone.

    The cancellation leaves the block as ``ClientDisconnected``. The request's body must have been read before;
    the response must not be completed inside, since servers report that as a disconnect too.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._is_gone = False

    async def __aenter__(self) -> "cancel_on_disconnect":
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("cancel_on_disconnect needs a task")
        self._task, self._num_cancelling = task, task.cancelling()
        self._listener = asyncio.create_task(self._listen())
        return self

    async def _listen(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._is_gone = True
        self._task.cancel()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.cancel()
        if self._is_gone and self._task.uncancel() <= self._num_cancelling and kind is asyncio.CancelledError:
            raise ClientDisconnected from error
