"""What the engine is told about profiles, and its answers, by number: a stop is answered when files are written."""

import asyncio
import itertools
from collections.abc import Callable

import msgspec

from ipc.messages import Profile, Profiled

NO_ENGINE = "no_engine"
"""The code of an answer that is not the engine's."""


class ProfileQuestions:
    """``send``: to the engine; whether there is one."""

    def __init__(self, send: Callable[[Profile], bool]) -> None:
        self._send = send
        self._numbers = itertools.count(1)
        self._asked: dict[int, asyncio.Future[Profiled]] = {}

    async def ask(self, message: Profile) -> Profiled:
        """The answer, whatever it says; the question gets a number of its own."""
        number = next(self._numbers)
        answer: asyncio.Future[Profiled] = asyncio.get_running_loop().create_future()
        self._asked[number] = answer
        try:
            if not self._send(msgspec.structs.replace(message, number=number)):
                return Profiled(number, NO_ENGINE, "there is no engine at the moment")
            return await answer
        finally:
            del self._asked[number]

    def receive(self, message: Profiled) -> None:
        """From the engine. Whoever asked may have left."""
        answer = self._asked.get(message.number)
        if answer is not None and not answer.done():
            answer.set_result(message)

    def lose(self, reason: str) -> None:
        """No answer comes any more."""
        for number, answer in self._asked.items():
            if not answer.done():
                answer.set_result(Profiled(number, NO_ENGINE, reason))
