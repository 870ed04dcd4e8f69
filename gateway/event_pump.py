"""From the engine's message to the client's socket in one call, without a task that has to be woken for it.

Waking a task for every token and stream costs more than all that is done with the token: its future, its handle and
each coroutine around it are touched anew, and an engine's step lies between, which leaves none of them in the caches.
"""

import asyncio
from collections.abc import Sequence
from typing import Protocol

from starlette.types import Send

from gateway.eager import start_eagerly
from gateway.generation import ChoiceDelta
from gateway.generation_group import GenerationGroup

KEEP_ALIVE = b": keep-alive\n\n"
"""A comment: clients of server-sent events pass over it, and whatever lies between sees that the stream lives."""


class EventEncoder(Protocol):
    """Writes the events of one response."""

    def encode(self, deltas: Sequence[tuple[int, ChoiceDelta]]) -> bytes:
        """The events for these (prompt index, delta); empty if they have nothing to show yet."""

    async def ending(self) -> bytes:
        """What follows the last delta and precedes ``[DONE]``; empty if nothing does."""


class EventPump:
    """Sends a group's events as they come, all that is new in one ``send``.

    While a slow client keeps ``send`` waiting, nothing is taken from the engine's stream, which merges what arrives:
    memory stays bounded by the request's own output. ``keep_alive``: seconds of silence after which a comment is sent;
    0: none is.
    """

    __slots__ = (
        "_events",
        "_group",
        "_is_over",
        "_is_pumping",
        "_keep_alive",
        "_loop",
        "_send",
        "_sending",
        "_spoke",
        "_timer",
    )

    def __init__(self, send: Send, group: GenerationGroup, events: EventEncoder, keep_alive: float = 0.0) -> None:
        self._send, self._group, self._events = send, group, events
        self._loop = asyncio.get_running_loop()
        self._is_over: asyncio.Future[None] = self._loop.create_future()
        self._keep_alive, self._spoke = keep_alive, self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._is_pumping = False
        self._sending: asyncio.Task[None] | None = None  # a ``send`` that waits for the client

    async def run(self) -> None:
        """Until everything is sent. Raises what went wrong with the request, its text or the sending."""
        self._group.notifier.listener = self._pump
        try:
            self._pump()
            self._break_silence()
            await self._is_over
        finally:
            self._group.notifier.listener = None
            if self._timer is not None:
                self._timer.cancel()
            if self._sending is not None:
                self._sending.cancel()
                await asyncio.wait({self._sending})
        if body := await self._events.ending():
            await self._send_body(body)

    def _pump(self) -> None:
        """There may be news, or room for them. Called by the reader of the engine's messages, which serves all
        requests: an error of this one ends here."""
        if self._is_pumping or self._sending is not None or self._is_over.done():
            return
        self._is_pumping = True  # to take something may itself be news, which is looked at next
        try:
            while deltas := self._group.take():
                body = self._events.encode(deltas)
                if body and not self._start_sending(body):
                    return
            if self._group.is_finished:
                self._is_over.set_result(None)
        except Exception as error:  # noqa: BLE001 - it is raised where the end is awaited
            self._is_over.set_exception(error)
        finally:
            self._is_pumping = False

    def _start_sending(self, body: bytes) -> bool:
        """Whether it is done; else the client is slow to read."""
        self._spoke = self._loop.time()
        self._sending = start_eagerly(self._send_body(body))
        if self._sending is None:
            return True
        self._sending.add_done_callback(self._sent)
        return False

    def _break_silence(self) -> None:
        """Sees to it that the client hears something every so often, until the end."""
        if not self._keep_alive or self._is_over.done():
            return
        now = self._loop.time()
        is_due = now >= self._spoke + self._keep_alive
        if is_due and self._sending is None:
            try:
                self._start_sending(KEEP_ALIVE)
            except Exception as error:  # noqa: BLE001 - it is raised where the end is awaited
                self._is_over.set_exception(error)
                return
        since = now if is_due else self._spoke
        self._timer = self._loop.call_at(since + self._keep_alive, self._break_silence)

    async def _send_body(self, body: bytes) -> None:
        await self._send({"type": "http.response.body", "body": body, "more_body": True})

    def _sent(self, sending: "asyncio.Task[None]") -> None:
        """The client has read enough: what came meanwhile is next."""
        self._sending = None
        if sending.cancelled() or self._is_over.done():
            return
        error = sending.exception()
        if error is None:
            self._pump()
        else:
            self._is_over.set_exception(error)
