"""Longest predicted remaining work first, with aging: what takes longest begins first, and a batch job ends sooner.

The mirror of ``short_first``, with the same bound.
"""

from engine_core.scheduler.lazy_heap import Key
from engine_core.scheduler.output_lengths import OutputLengths, num_to_compute
from engine_core.scheduler.policy import KeyedWaitingSet, arrival_key
from engine_core.scheduler.short_first import head_start_ns
from engine_core.sequence import Sequence

__all__ = ["LongFirst"]


class LongFirst(KeyedWaitingSet):
    """Work is the tokens to compute and the output to come, by what outputs became so far."""

    def __init__(self) -> None:
        super().__init__()
        self._lengths = OutputLengths()

    def key(self, seq: Sequence) -> Key:
        """Arrival, and earlier by the work."""
        arrival_ns, *ties = arrival_key(seq)
        return (arrival_ns - head_start_ns(num_to_compute(seq) + self._lengths.expected(seq)), arrival_ns, *ties)

    def on_finished(self, seq: Sequence) -> None:
        """Its output tells of others."""
        self._lengths.learn(seq)
