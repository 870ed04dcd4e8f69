"""What a scheduling policy is: the owner of the waiting set, the one who names victims, and who may learn.

The scheduler knows policies by this protocol alone. Keys are static (arrival, priority, a prediction made on
arrival): nothing is sorted again each step. All operations are O(log n) in the number waiting.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Sequence as ListOf
from typing import Protocol

from engine_core.scheduler.lazy_heap import Key, LazyHeap
from engine_core.sequence import Sequence
from engine_core.step import ScheduledSequence


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
        """Remove and return what ``peek`` shows: it is admitted. Raises IndexError when empty."""

    def victim(self, running: Iterable[Sequence]) -> Sequence:
        """The running sequence to preempt when blocks run out."""

    def makes_way(self, waiting: Sequence, running: ListOf[Sequence]) -> Sequence | None:
        """Who of ``running`` is preempted for ``waiting``, which comes next and finds no slot or no blocks; None: it
        waits until somebody ends. Asked once a step while somebody waits so."""

    def hopeless(self, now_ns: int) -> Iterable[Sequence]:
        """Sequences, waiting or running, that cannot meet their deadline any more: they are ended. Asked every step."""

    def on_step(self, now_ns: int, scheduled: Mapping[Sequence, ScheduledSequence]) -> None:
        """A step was made, perhaps an empty one: ``num_tokens`` of each are computed."""

    def on_finished(self, seq: Sequence) -> None:
        """It has ended, from waiting (then it was removed) or running, by its ``finish_reason``."""


class KeyedWaitingSet(ABC):
    """A heap by a fixed key: what a policy is when its order is a key. It learns nothing unless told to."""

    def __init__(self) -> None:
        self._waiting = LazyHeap[Sequence]()

    @abstractmethod
    def key(self, seq: Sequence) -> Key:
        """Lowest first. Taken when the sequence begins to wait, and of running ones to find a victim."""

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Sequence]:
        """In no particular order."""
        return iter(self._waiting)

    def add(self, seq: Sequence) -> None:
        """O(log n)."""
        if seq in self._waiting:
            raise ValueError(f"request {seq.request.request_id} choice {seq.choice} already waits")
        self._waiting.push(seq, self.key(seq))

    def requeue(self, seq: Sequence) -> None:
        """O(log n): by its key as of now."""
        self.add(seq)

    def remove(self, seq: Sequence) -> None:
        """O(1) now, O(log n) when its entry comes up."""
        self._waiting.remove(seq)

    def peek(self) -> Sequence | None:
        """Amortized O(log n)."""
        return self._waiting.peek()

    def pop(self) -> Sequence:
        """O(log n)."""
        return self._waiting.pop()

    def victim(self, running: Iterable[Sequence]) -> Sequence:
        """The one that would have been admitted last."""
        return max(running, key=self.key)

    def makes_way(self, waiting: Sequence, running: ListOf[Sequence]) -> Sequence | None:
        """Nobody: who runs goes on."""
        return None

    def hopeless(self, now_ns: int) -> Iterable[Sequence]:
        """Nobody, before the deadline itself."""
        return ()

    def on_step(self, now_ns: int, scheduled: Mapping[Sequence, ScheduledSequence]) -> None:  # noqa: B027 - optional
        """Its order does not depend on it."""

    def on_finished(self, seq: Sequence) -> None:  # noqa: B027 - optional
        """Its order does not depend on it."""


def arrival_key(seq: Sequence) -> Key:
    """By arrival at the gateway; ids only break ties."""
    return (seq.request.arrival_ns, seq.request.request_id, seq.choice)
