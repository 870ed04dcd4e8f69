"""Shortest predicted remaining work first, with aging.

Aging is a head start (design 4): each token of work puts a request as much later as that many milliseconds of arrival
would. Whatever it is, no request is overtaken by one that arrived ``MOST_NS`` after it.
"""

from engine_core.scheduler.lazy_heap import Key
from engine_core.scheduler.output_lengths import OutputLengths, num_to_compute
from engine_core.scheduler.policy import KeyedWaitingSet, arrival_key
from engine_core.sequence import Sequence

__all__ = ["ShortFirst"]

NS_PER_TOKEN = 10_000_000
MOST_NS = 30_000_000_000


class ShortFirst(KeyedWaitingSet):
    """Work is the tokens to compute and the output to come, by what outputs became so far."""

    def __init__(self) -> None:
        super().__init__()
        self._lengths = OutputLengths()

    def key(self, seq: Sequence) -> Key:
        """Arrival, and later by the work."""
        arrival_ns, *ties = arrival_key(seq)
        return (arrival_ns + head_start_ns(num_to_compute(seq) + self._lengths.expected(seq)), arrival_ns, *ties)

    def on_finished(self, seq: Sequence) -> None:
        """Its output tells of others."""
        self._lengths.learn(seq)


def head_start_ns(num_tokens: int) -> int:
    """What the work is worth as waiting time."""
    return min(NS_PER_TOKEN * num_tokens, MOST_NS)
