"""What requests cost, added up for each request and each tenant. Plain numbers; knows no HTTP and no engine."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec

PATIENCE_SECONDS = 5.0
"""How long a response waits for what its request has cost."""


@dataclass(slots=True)
class Usage:
    """Cumulative. ``device_ns``: of the engine's time; ``kv_block_ns``: KV blocks held × time."""

    num_requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    device_ns: int = 0
    kv_block_ns: int = 0

    def add(self, other: "Usage") -> None:
        """Both as one."""
        for name in self.__dataclass_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class Cost(msgspec.Struct):
    """What a response says of it, where it was asked to."""

    device_seconds: float
    kv_block_seconds: float


@dataclass(slots=True)
class Bill:
    """One request's costs, which go to the account of its tenant, too. The engine's part comes with the last output of
    each choice, for a client that has left after its request is over here.

    An engine that dies takes what it had computed of unfinished choices along: that is on no bill. What the engine
    after it computes is, the prompt and the tokens that it has to compute again among it. So a fault makes a bill
    smaller or larger, but nothing is on it twice, and sums only grow.
    """

    account: Usage = field(default_factory=Usage)
    device_ns: int = 0
    kv_block_ns: int = 0
    num_charged: int = 0  # choices
    _news: "asyncio.Future[None] | None" = None

    def charge(self, device_ns: int, kv_block_ns: int) -> None:
        """A choice has ended: in the engine, or with nothing to pay where there is none."""
        self.num_charged += 1
        self.device_ns += device_ns
        self.kv_block_ns += kv_block_ns
        if self._news is not None and not self._news.done():
            self._news.set_result(None)
        self.account.device_ns += device_ns
        self.account.kv_block_ns += kv_block_ns

    async def until_charged(self, num_choices: int) -> None:
        """Until so many choices have ended in the engine: one that a stop string ends is over here a step earlier."""
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_SECONDS):
                while self.num_charged < num_choices:
                    self._news = asyncio.get_running_loop().create_future()
                    await self._news

    def count(self, prompt_tokens: int, cached_tokens: int, output_tokens: int) -> None:
        """The request is over: once."""
        account = self.account
        account.num_requests += 1
        account.prompt_tokens += prompt_tokens
        account.cached_tokens += cached_tokens
        account.output_tokens += output_tokens

    def cost(self) -> Cost:
        """Of the choices that have ended."""
        return Cost(self.device_ns * 1e-9, self.kv_block_ns * 1e-9)
