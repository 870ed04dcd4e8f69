"""Who arrived last is served first: fresh requests meet their users' patience, old ones have used theirs up.

It starves nobody for ever: who has waited ``PATIENCE_NS`` longer than another goes first again.
"""

from engine_core.scheduler.policy import KeyedWaitingSet
from engine_core.sequence import Sequence

PATIENCE_NS = 10_000_000_000


class NewestFirst(KeyedWaitingSet):
    """Within windows of ``PATIENCE_NS`` the latest arrival first, and the windows one after the other."""

    def key(self, seq: Sequence) -> tuple[int, ...]:
        """The lowest is admitted first; the highest is preempted first."""
        request = seq.request
        return (request.arrival_ns // PATIENCE_NS, -request.arrival_ns, request.request_id, seq.choice)
