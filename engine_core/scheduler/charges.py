"""What each sequence costs: its share of the steps' time, and how long it holds KV blocks.

A step's time is shared out by tokens. A block that several sequences hold is charged to each: whoever shares a prefix
pays for keeping it, not for computing it. What is computed again after a preemption is charged again.
"""

from collections.abc import Callable

from engine_core.sequence import Sequence


class Charges:
    """Adds up in the sequences themselves. ``clock``: monotonic nanoseconds."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._now = 0  # of the last commit
        self._share = 0.0

    def begin(self, seq: Sequence) -> None:
        """It has got its first blocks."""
        seq.charged_ns = self._clock()

    def commit(self, launched_ns: int, num_tokens: int) -> None:
        """A step of so many tokens is done. It began when it was launched, or when the one before it was done."""
        now = self._clock()
        self._share = (now - max(launched_ns, self._now)) / max(1, num_tokens)
        self._now = now

    def charge(self, seq: Sequence, num_tokens: int) -> None:
        """It had so many tokens of the step that was committed last."""
        seq.device_ns += self._share * num_tokens
        self._hold(seq, self._now)

    def settle(self, seq: Sequence) -> None:
        """Its blocks go back, or its last output is being made."""
        self._hold(seq, self._clock())

    def _hold(self, seq: Sequence, now: int) -> None:
        seq.kv_block_ns += max(0, now - seq.charged_ns) * len(seq.block_table.blocks)
        seq.charged_ns = now
