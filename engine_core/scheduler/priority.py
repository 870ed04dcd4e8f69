"""By the request's priority, lower first, then by arrival; who has a higher one takes a lower one's place."""

from collections.abc import Sequence as ListOf

from engine_core.scheduler.lazy_heap import Key
from engine_core.scheduler.policy import KeyedWaitingSet, arrival_key
from engine_core.sequence import Sequence

__all__ = ["Priority"]


class Priority(KeyedWaitingSet):
    """The lowest number is admitted first and preempted last."""

    def key(self, seq: Sequence) -> Key:
        """Priority, then arrival."""
        return (seq.request.priority, *arrival_key(seq))

    def makes_way(self, waiting: Sequence, running: ListOf[Sequence]) -> Sequence | None:
        """The last in order, if its priority is strictly lower. So nobody is ever preempted for an equal, and who was
        preempted cannot take the place back: there is no ping-pong."""
        priority = waiting.request.priority
        lower = [seq for seq in running if seq.request.priority > priority]
        return max(lower, key=self.key) if lower else None
