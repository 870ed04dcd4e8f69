"""What ``LLM`` returns, and how it is put together from generations. Knows no engine process and no threads."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gateway.generation import Generation
from gateway.logprobs import TokenLogprob


@dataclass(slots=True)
class CompletionOutput:
    """One choice. ``logprobs``: an entry for each token, if asked for."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None


@dataclass(slots=True)
class RequestOutput:
    """One prompt's results. ``prompt`` is None for a prompt of token ids. ``prompt_logprobs``: positions 1 …"""

    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    prompt_logprobs: list[TokenLogprob] | None = None
    num_cached_tokens: int = 0


async def gather(generations: list[Generation], on_done: Callable[[], Any]) -> list[RequestOutput]:
    """All at once: the engine's queue is the place to wait. The first failure ends the others and is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_collect(generation, on_done)) for generation in generations]
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]


async def _collect(generation: Generation, on_done: Callable[[], Any]) -> RequestOutput:
    outputs = [CompletionOutput(index) for index in range(generation.request.n)]
    async with generation:
        while deltas := await generation.deltas():
            for delta in deltas:
                output = outputs[delta.choice]
                output.text += delta.text
                output.token_ids += delta.token_ids
                if delta.logprobs is not None:
                    output.logprobs = (output.logprobs or []) + delta.logprobs
                if delta.finish_reason is not None:
                    output.finish_reason, output.stop_reason = delta.finish_reason, delta.stop_reason
    on_done()
    return RequestOutput(
        None, generation.request.prompt_ids, outputs, generation.prompt_logprobs, generation.num_cached_tokens
    )
