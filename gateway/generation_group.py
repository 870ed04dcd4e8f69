"""The generations of one HTTP request with several prompts: begun, read and aborted together."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from types import TracebackType

from gateway.generation import ChoiceDelta, Generation
from gateway.notifier import Notifier
from gateway.schema.deadline import deadline_missed


class GenerationGroup:
    """An async context manager. Choice c of prompt p has the index p · n + c.

    ``notifier`` is told when ``take`` has news. Nothing of a generation is held here unread but what ``begun`` waited
    for: a slow reader finds it merged in the engine's stream.
    """

    def __init__(self, generations: Sequence[Generation]) -> None:
        self.generations = generations
        self._stack = AsyncExitStack()
        self.notifier = Notifier()
        self._first: list[tuple[int, ChoiceDelta]] = []
        for generation in generations:
            generation.notifier = self.notifier

    async def __aenter__(self) -> "GenerationGroup":
        async with AsyncExitStack() as stack:  # if the last cannot begin, the first are aborted
            for generation in self.generations:
                await stack.enter_async_context(generation)
            self._stack = stack.pop_all()
        return self

    async def accepted(self) -> None:
        """Waits until every prompt is in the engine's queue; raises what the first refused one raises."""
        for generation in self.generations:
            await generation.accepted()

    async def begun(self, timeout: float | None) -> None:
        """Waits for the first news, at most ``timeout`` seconds; ``take`` returns them.

        Raises RequestError (408) if they are that the deadline ended everything before there was anything to show.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                self._first = await self.deltas()
        is_late = all(delta.finish_reason == "deadline" and not delta.token_ids for _, delta in self._first)
        if self._first and is_late and self.is_finished:
            raise deadline_missed()

    @property
    def has_deadline(self) -> bool:
        """Some of it may end by a deadline."""
        return any(generation.request.deadline_ns for generation in self.generations)

    @property
    def is_finished(self) -> bool:
        """All generations have ended."""
        for generation in self.generations:  # noqa: SIM110 - asked for every token, a generator takes three times as long
            if not generation.is_finished:
                return False
        return True

    def take(self) -> list[tuple[int, ChoiceDelta]]:
        """(prompt index, delta) of all that is new, perhaps nothing. Raises EngineError when a request failed."""
        if self._first:
            first, self._first = self._first, []
            return first
        return [(index, delta) for index, generation in enumerate(self.generations) for delta in generation.take()]

    async def deltas(self) -> list[tuple[int, ChoiceDelta]]:
        """What ``take`` returns, as soon as that is something. Empty when all have ended."""
        while not self.is_finished:
            if deltas := self.take():
                return deltas
            await self.notifier.wait()
        return []

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.__aexit__(kind, error, trace)

    @property
    def num_prompt_tokens(self) -> int:
        """Each prompt counted once."""
        return sum(len(generation.request.prompt_ids) for generation in self.generations)

    @property
    def num_output_tokens(self) -> int:
        """So far, over all choices."""
        return sum(generation.num_output_tokens for generation in self.generations)

    @property
    def num_cached_tokens(self) -> int:
        """Prompt tokens whose KV was reused."""
        return sum(generation.num_cached_tokens for generation in self.generations)
