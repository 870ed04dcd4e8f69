"""First come, first served: by arrival at the gateway."""

from engine_core.scheduler.lazy_heap import Key
from engine_core.scheduler.policy import KeyedWaitingSet, arrival_key
from engine_core.sequence import Sequence

__all__ = ["FirstComeFirstServed"]


class FirstComeFirstServed(KeyedWaitingSet):
    """The earliest arrival is admitted first and preempted last."""

    def key(self, seq: Sequence) -> Key:
        """Arrival; ids only break ties."""
        return arrival_key(seq)
