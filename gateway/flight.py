"""A request in flight: what it takes to go on with it in another engine (design 8).

Owns its ``Add`` and, of each choice, every token received; knows neither who reads nor which engine computes.
"""

from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from gateway.request_history import RequestHistory
from ipc.codec import unpack_ids
from ipc.messages import Add, Event, EventKind, FinishReason, Output


class Bill(Protocol):
    """Who is told what a request has cost."""

    def charge(self, device_ns: int, kv_block_ns: int) -> None: ...


@dataclass(slots=True)
class ChoiceProgress:
    """What is known of a choice. ``packed``: the ids of its tokens; ``end``: after so many tokens a stop string ended
    it, and the engine was told."""

    packed: bytearray = field(default_factory=bytearray)
    is_finished: bool = False
    num_cached_tokens: int = 0
    end: int | None = None

    @property
    def token_ids(self) -> list[int]:
        """As a list."""
        return unpack_ids(bytes(self.packed))


class Flight:
    """``add``: the request as it came. ``bill``: who pays."""

    def __init__(self, add: Add, bill: Bill | None = None) -> None:
        self.add, self.bill = add, bill
        self.request_id, self.arrival_ns = add.request_id, add.arrival_ns
        self.choices = {index: ChoiceProgress() for index, _ in add.choices}
        self.was_sent = self.was_resumed = False
        self.has_output = False  # of the present engine
        self.has_failed = False
        self.history = RequestHistory()
        self._has_prompt_logprobs = False

    @property
    def is_finished(self) -> bool:
        """All choices have ended, or the request failed."""
        return self.has_failed or all(choice.is_finished for choice in self.choices.values())

    @property
    def has_begun(self) -> bool:
        """Some engine has computed tokens of it."""
        return any(choice.packed for choice in self.choices.values())

    def take(self, output: Output) -> Output:
        """What an engine sent, as whoever reads is to see it: a request that went on elsewhere is not admitted a second
        time, and its cached tokens are those of the first time."""
        choice = self.choices[output.choice]
        choice.packed += output.token_ids
        if output.events:
            self.history.observe(output.events)
        if output.prompt_logprobs is not None:
            self._has_prompt_logprobs = True
        if output.finish is not None:
            choice.is_finished = True
            self.charge(output)
        if not self.was_resumed:
            choice.num_cached_tokens = output.num_cached_tokens
            return output
        return msgspec.structs.replace(
            output, events=tuple(map(_as_resumed, output.events)), num_cached_tokens=choice.num_cached_tokens
        )

    def charge(self, output: Output) -> None:
        """The engine has said what a choice has cost."""
        if self.bill is not None:
            self.bill.charge(output.device_ns, output.kv_block_ns)

    def what_was_over(self) -> list[Output]:
        """The last outputs of choices that a stop string ended and that a dead engine cannot answer for any more."""
        return [
            output for output in self.unfinished_as(FinishReason.STOP) if self.choices[output.choice].end is not None
        ]

    def unfinished_as(self, reason: FinishReason) -> list[Output]:
        """The last outputs of the choices that have not ended, if they end here and now."""
        return [
            Output(self.request_id, index, b"", finish=reason, num_cached_tokens=choice.num_cached_tokens)
            for index, choice in self.choices.items()
            if not choice.is_finished
        ]

    def as_add(self) -> Add:
        """The request as an engine must see it now: choices that have not ended, with what they have so far."""
        choices = tuple(
            (index, bytes(choice.packed)) for index, choice in self.choices.items() if not choice.is_finished
        )
        return msgspec.structs.replace(
            self.add,
            choices=choices,
            num_prompt_logprobs=-1 if self._has_prompt_logprobs else self.add.num_prompt_logprobs,
            is_resumed=self.was_sent,
        )


_AS_RESUMED = {
    int(EventKind.ADMITTED): int(EventKind.RESUMED),
    int(EventKind.QUEUED): int(EventKind.RESTARTED),
}


def _as_resumed(event: Event) -> Event:
    kind, time_ns, value = event
    return (_AS_RESUMED.get(kind, kind), time_ns, value)
