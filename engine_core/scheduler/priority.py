"""By the request's priority, lower first, then by arrival."""

from engine_core.scheduler.policy import Key, KeyedWaitingSet
from engine_core.sequence import Sequence

__all__ = ["Priority"]


class Priority(KeyedWaitingSet):
    """The lowest number is admitted first and preempted last."""

    def key(self, seq: Sequence) -> Key:
        """Priority, then arrival."""
        request = seq.request
        return (request.priority, request.arrival_ns, request.request_id, seq.choice)
