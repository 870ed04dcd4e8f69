"""What each sequence costs: its share of the steps' time, and how long it holds KV blocks.

A step's time is shared out by tokens. A block that several sequences hold is charged to each: whoever shares a prefix
pays for keeping it, not for computing it. What is computed again after a preemption is charged again. Blocks are
looked at where their number changes, not at every step: between two changes their time is one product.
"""

from collections.abc import Callable, Iterable

from engine_core.sequence import Sequence
from engine_core.step import ScheduledSequence


class Charges:
    """Adds up in the sequences themselves. ``clock``: monotonic nanoseconds."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._now = 0  # of the last commit

    def begin(self, seq: Sequence) -> None:
        """It has got its first blocks."""
        seq.charged_ns = self._clock()

    def grow(self, seq: Sequence) -> None:
        """It is about to get more blocks. They count from its last commit on."""
        self._hold(seq, seq.committed_ns)

    def settle(self, seq: Sequence) -> None:
        """Its blocks go back, or its last output is being made."""
        self._hold(seq, self._clock())

    def commit(
        self,
        launched_ns: int,
        num_tokens: int,
        sequences: Iterable[Sequence],
        scheduled: Iterable[ScheduledSequence],
    ) -> None:
        """A step of so many tokens is done. It began when it was launched, or when the one before it was done."""
        now = self._clock()
        token_ns = (now - max(launched_ns, self._now)) / max(1, num_tokens)
        self._now = now
        for seq, entry in zip(sequences, scheduled, strict=True):
            seq.device_ns += token_ns * entry.num_tokens
            seq.committed_ns = now

    def _hold(self, seq: Sequence, now: int) -> None:
        if now > seq.charged_ns:  # else it was admitted after its last commit, and has held nothing until then
            seq.kv_block_ns += (now - seq.charged_ns) * len(seq.block_table.blocks)
            seq.charged_ns = now
