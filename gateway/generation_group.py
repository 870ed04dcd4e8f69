"""The generations of one HTTP request with several prompts: begun, read and aborted together."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from types import TracebackType

from gateway.generation import ChoiceDelta, Generation


class GenerationGroup:
    """An async context manager. Choice c of prompt p has the index p · n + c.

    Of each generation at most one batch of deltas is held unread, so a slow reader costs bounded memory here.
    """

    def __init__(self, generations: Sequence[Generation]) -> None:
        self.generations = generations
        self._stack = AsyncExitStack()
        self._reads: dict[asyncio.Task[list[ChoiceDelta]], int] = {}
        self._idle = list(range(len(generations)))  # not ended, and nobody reads them now

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

    async def deltas(self) -> list[tuple[int, ChoiceDelta]]:
        """(prompt index, delta) of all that is new; waits for at least one. Empty when all have ended."""
        if len(self.generations) == 1:
            return [(0, delta) for delta in await self.generations[0].deltas()]
        while self._idle or self._reads:
            for index in self._idle:
                self._reads[asyncio.create_task(self.generations[index].deltas())] = index
            self._idle.clear()
            done, _ = await asyncio.wait(self._reads, return_when=asyncio.FIRST_COMPLETED)
            found: list[tuple[int, ChoiceDelta]] = []
            for read in done:
                index = self._reads.pop(read)
                deltas = read.result()
                if deltas:
                    self._idle.append(index)
                    found += [(index, delta) for delta in deltas]
            if found:
                return found
        return []

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for read in self._reads:
            read.cancel()
        if self._reads:
            await asyncio.wait(self._reads)
            for read in self._reads:
                if not read.cancelled():
                    read.exception()  # seen: the first error is already on its way
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
