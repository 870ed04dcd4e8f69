"""First come, first served: by arrival at the gateway."""

from engine_core.scheduler.policy import Key, KeyedWaitingSet
from engine_core.sequence import Sequence

__all__ = ["FirstComeFirstServed"]


class FirstComeFirstServed(KeyedWaitingSet):
    """The earliest arrival is admitted first and preempted last."""

    def key(self, seq: Sequence) -> Key:
        """Arrival; ids only break ties."""
        return (seq.request.arrival_ns, seq.request.request_id, seq.choice)
