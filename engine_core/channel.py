"""The busy loop's two queues, as the loop sees them; who owns the socket behind them is not its business."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from engine_core.sequence import Grammar, GrammarError, Request
from ipc.messages import Abort, Drain, Finish, Profile, ToGateway
from ipc.params import SamplingParams


@dataclass(frozen=True, slots=True)
class GatewayGone:
    """A gateway cannot be reached any more: what it asked for is for nobody."""


@dataclass(frozen=True, slots=True)
class UnfitRequest:
    """An ``Add`` that cannot become a request, and why."""

    request_id: int
    problem: str


@dataclass(frozen=True, slots=True)
class Compiled:
    """A request's grammar: what makes it for a choice, or why there is none."""

    request_id: int
    result: Callable[[SamplingParams], Grammar] | GrammarError


@dataclass(frozen=True, slots=True)
class ProfileNews:
    """``due``: a profile is to begin; ``full``: it is to end; ``written``: its files are there, unless ``error`` says
    why not."""

    what: Literal["due", "full", "written"]
    error: str = ""


Inbound = tuple[bytes, Request | UnfitRequest | Compiled | Finish | Abort | Drain | Profile | ProfileNews | GatewayGone]
"""(socket identity of the gateway, what it wants)"""


class Channel(Protocol):
    """Messages in and out."""

    def receive(self, *, timeout: float | None) -> list[Inbound]:
        """Everything that has come; waits up to ``timeout`` seconds for the first (None: for ever, 0: not at all)."""

    def post(self, owner: bytes, message: Compiled | ProfileNews) -> None:
        """To the loop, from any thread: it comes like what gateways send."""

    def send(self, owner: bytes, message: ToGateway) -> None:
        """To one gateway."""

    def broadcast(self, message: ToGateway) -> None:
        """To every gateway that has said hello."""
