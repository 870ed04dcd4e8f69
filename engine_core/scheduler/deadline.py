"""Least slack first: slack is the time to the deadline less what the sequence will still take.

``now`` is the same for all, so the order is by (deadline - predicted time), a static key. Under overload those with
the least slack are those that miss it: who will likely be late comes after all others, who cannot be in time is given
up. Both are found by a look at the first of a heap.
"""

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Sequence as ListOf

from engine_core.scheduler.lazy_heap import Key, LazyHeap
from engine_core.scheduler.output_lengths import OutputLengths, num_to_compute
from engine_core.scheduler.pace import Pace
from engine_core.scheduler.policy import arrival_key
from engine_core.sequence import Sequence
from engine_core.step import ScheduledSequence

__all__ = ["Deadline"]

NO_DEADLINE_NS = 60_000_000_000
"""A request without a deadline has its place by one so long after its arrival, and comes first from then on: whatever
arrives later does not go before it. It is never given up."""


class Deadline:
    """Implements ``policy.Policy``. Outputs are taken to become long for the order, and short for giving up."""

    def __init__(self) -> None:
        self._now_ns = 0  # as of this step
        self._lengths, self._pace = OutputLengths(), Pace()
        # Waiting, by when they must be served: without a deadline, with one that they likely meet, or likely do not.
        self._patient = LazyHeap[Sequence]()
        self._hopeful = LazyHeap[Sequence]()
        self._unlikely = LazyHeap[Sequence]()
        # Waiting and running ones with a deadline, by when they must be served at the latest, as of when they were put.
        self._latest = LazyHeap[Sequence]()

    def __len__(self) -> int:
        return len(self._patient) + len(self._hopeful) + len(self._unlikely)

    def __iter__(self) -> Iterator[Sequence]:
        """In no particular order."""
        for heap in (self._patient, self._hopeful, self._unlikely):
            yield from heap

    def key(self, seq: Sequence) -> Key:
        """When it must be served from, if its output becomes long."""
        request = seq.request
        deadline_ns = request.deadline_ns or request.arrival_ns + NO_DEADLINE_NS
        return (deadline_ns - self._pace.nanoseconds(num_to_compute(seq), self._lengths.most(seq)), *arrival_key(seq))

    def add(self, seq: Sequence) -> None:
        """O(log n)."""
        if self._heap_of(seq) is not None:
            raise ValueError(f"request {seq.request.request_id} choice {seq.choice} already waits")
        (self._hopeful if seq.request.deadline_ns else self._patient).push(seq, self.key(seq))
        if seq.request.deadline_ns and seq not in self._latest:
            self._latest.push(seq, (self._latest_ns(seq),))

    def requeue(self, seq: Sequence) -> None:
        """O(log n): by its slack as of now."""
        self.add(seq)

    def remove(self, seq: Sequence) -> None:
        """O(1) now, O(log n) when its entry comes up."""
        heap = self._heap_of(seq)
        if heap is None:
            raise KeyError(seq)
        heap.remove(seq)

    def peek(self) -> Sequence | None:
        """Amortized O(log n)."""
        return self._next().peek()

    def pop(self) -> Sequence:
        """O(log n)."""
        return self._next().pop()

    def victim(self, running: Iterable[Sequence]) -> Sequence:
        """Who will likely be late, else the one with the most slack."""
        return max(running, key=self._place)

    def makes_way(self, waiting: Sequence, running: ListOf[Sequence]) -> Sequence | None:
        """Nobody: what was done for who runs would be lost."""
        return None

    def hopeless(self, now_ns: int) -> Iterable[Sequence]:
        """Those that would be late even if nothing but the steps themselves held them up, as fast as steps are now.

        Who comes up and is not late gets its new place: work that was done puts it off.
        """
        self._now_ns = now_ns
        while (key := self._hopeful.least_key()) is not None and key[0] < now_ns:
            self._unlikely.push(self._hopeful.pop(), key)
        late = []
        while (latest := self._latest.least_key()) is not None and latest[0] < now_ns:
            seq = self._latest.pop()
            latest_ns = self._latest_ns(seq)
            if latest_ns < now_ns:
                late.append(seq)
            else:
                self._latest.push(seq, (latest_ns,))
        return late

    def on_step(self, now_ns: int, scheduled: Mapping[Sequence, ScheduledSequence]) -> None:
        """Its time tells of the next ones."""
        self._pace.on_step(now_ns, scheduled)

    def on_finished(self, seq: Sequence) -> None:
        """Its output tells of others."""
        self._lengths.learn(seq)
        if seq in self._latest:
            self._latest.remove(seq)

    def _next(self) -> LazyHeap[Sequence]:
        """The heap whose first one comes next."""
        patient, hopeful = self._patient.least_key(), self._hopeful.least_key()
        if patient is not None and (hopeful is None or patient < hopeful or patient[0] < self._now_ns):
            return self._patient
        return self._unlikely if hopeful is None else self._hopeful

    def _heap_of(self, seq: Sequence) -> LazyHeap[Sequence] | None:
        return next((heap for heap in (self._patient, self._hopeful, self._unlikely) if seq in heap), None)

    def _latest_ns(self, seq: Sequence) -> int:
        return seq.request.deadline_ns - self._pace.nanoseconds(num_to_compute(seq), self._lengths.least(seq))

    def _place(self, seq: Sequence) -> tuple[bool, Key]:
        key = self.key(seq)
        return seq.request.deadline_ns > 0 and key[0] < self._now_ns, key
