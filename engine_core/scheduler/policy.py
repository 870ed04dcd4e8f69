"""What a scheduling policy is: the owner of the waiting set, and the one who names victims.

Keys are static (arrival, priority): nothing is sorted again each step. All operations are O(log n).
"""

import heapq
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Protocol

from engine_core.sequence import Sequence

Key = tuple[int, ...]


class Policy(Protocol):
    """Order of the waiting sequences. A sequence is in the set at most once."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Sequence]: ...

    def add(self, seq: Sequence) -> None:
        """A new sequence waits."""

    def requeue(self, seq: Sequence) -> None:
        """A preempted sequence waits again, at the place its arrival gives it."""

    def remove(self, seq: Sequence) -> None:
        """It no longer waits. Raises KeyError if it did not."""

    def peek(self) -> Sequence | None:
        """The one to admit next; None if nobody waits."""

    def pop(self) -> Sequence:
        """Remove and return what ``peek`` shows. Raises IndexError when empty."""

    def victim(self, running: Iterable[Sequence]) -> Sequence:
        """The running sequence to preempt when blocks run out."""


class KeyedWaitingSet(ABC):
    """A heap by a fixed key, with lazy removal: what a policy is when its order is a key."""

    def __init__(self) -> None:
        self._heap: list[tuple[Key, int, Sequence]] = []
        self._waiting: dict[Sequence, int] = {}  # the number of its valid heap entry
        self._num_entries = 0

    @abstractmethod
    def key(self, seq: Sequence) -> Key:
        """Lowest first; static."""

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Sequence]:
        """In no particular order."""
        return iter(self._waiting)

    def add(self, seq: Sequence) -> None:
        """O(log n)."""
        if seq in self._waiting:
            raise ValueError(f"request {seq.request.request_id} choice {seq.choice} already waits")
        self._num_entries += 1
        self._waiting[seq] = self._num_entries
        heapq.heappush(self._heap, (self.key(seq), self._num_entries, seq))

    def requeue(self, seq: Sequence) -> None:
        """O(log n): its key has not changed."""
        self.add(seq)

    def remove(self, seq: Sequence) -> None:
        """O(1) now, O(log n) when its entry comes up."""
        del self._waiting[seq]
        if len(self._heap) > 64 and len(self._heap) > 4 * len(self._waiting):
            self._heap = [entry for entry in self._heap if self._waiting.get(entry[2]) == entry[1]]
            heapq.heapify(self._heap)

    def peek(self) -> Sequence | None:
        """Amortized O(log n)."""
        while self._heap and self._waiting.get(self._heap[0][2]) != self._heap[0][1]:
            heapq.heappop(self._heap)
        return self._heap[0][2] if self._heap else None

    def pop(self) -> Sequence:
        """O(log n)."""
        seq = self.peek()
        if seq is None:
            raise IndexError("nobody waits")
        heapq.heappop(self._heap)
        del self._waiting[seq]
        return seq

    def victim(self, running: Iterable[Sequence]) -> Sequence:
        """The one that would have been admitted last."""
        return max(running, key=self.key)
