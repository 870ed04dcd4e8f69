"""The busy loop's two queues, as the loop sees them; who owns the socket behind them is not its business."""

from dataclasses import dataclass
from typing import Protocol

from engine_core.sequence import Request
from ipc.messages import Abort, Drain, Finish, ToGateway


@dataclass(frozen=True, slots=True)
class GatewayGone:
    """A gateway cannot be reached any more: what it asked for is for nobody."""


@dataclass(frozen=True, slots=True)
class UnfitRequest:
    """An ``Add`` that cannot become a request, and why."""

    request_id: int
    problem: str


Inbound = tuple[bytes, Request | UnfitRequest | Finish | Abort | Drain | GatewayGone]
"""(socket identity of the gateway, what it wants)"""


class Channel(Protocol):
    """Messages in and out."""

    def receive(self, *, timeout: float | None) -> list[Inbound]:
        """Everything that has come; waits up to ``timeout`` seconds for the first (None: for ever, 0: not at all)."""

    def send(self, owner: bytes, message: ToGateway) -> None:
        """To one gateway."""

    def broadcast(self, message: ToGateway) -> None:
        """To every gateway that has said hello."""
