"""Fair shares of tenants by a virtual token counter: who was served least comes next (VTC, arXiv 2401.00588).

A tenant is charged for the tokens of a prompt when it is admitted and for output as it is drawn, divided by its
weight. One that floods waits behind itself; within a tenant it is first come, first served.
"""

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Sequence as ListOf

from engine_core.scheduler.lazy_heap import Key
from engine_core.scheduler.policy import arrival_key
from engine_core.scheduler.tenant_counters import LeastServed, TenantCounters
from engine_core.sequence import Sequence
from engine_core.step import ScheduledSequence

__all__ = ["Fair"]

PROMPT_WEIGHT, OUTPUT_WEIGHT = 1.0, 2.0
"""Of a token, in what a tenant is charged: output comes one token a step, a prompt many."""

QUANTUM = 1024.0
"""Weighted tokens by which a tenant that runs may be ahead of one that waits, before it has to make way."""


class Fair:
    """Implements ``policy.Policy``."""

    def __init__(self) -> None:
        self._tenants = TenantCounters()
        self._with_waiting = LeastServed()
        self._live: set[Sequence] = set()  # wait or run: each is counted in its tenant once
        self._num_waiting = 0

    def __len__(self) -> int:
        return self._num_waiting

    def __iter__(self) -> Iterator[Sequence]:
        """In no particular order."""
        for tenant in self._tenants:
            yield from tenant.waiting

    def add(self, seq: Sequence) -> None:
        """O(log n)."""
        if seq not in self._live:
            self._live.add(seq)
            self._tenants.enter(seq)
        tenant = self._tenants.of(seq)
        if seq in tenant.waiting:
            raise ValueError(f"request {seq.request.request_id} choice {seq.choice} already waits")
        tenant.waiting.push(seq, arrival_key(seq))
        self._num_waiting += 1
        if len(tenant.waiting) == 1:
            self._with_waiting.push(tenant)

    def requeue(self, seq: Sequence) -> None:
        """O(log n). What its tenant was charged for stays so: the tokens are computed again for nothing."""
        self.add(seq)

    def remove(self, seq: Sequence) -> None:
        """O(1) now, O(log n) when its entry comes up."""
        tenant = self._tenants.of(seq)
        tenant.waiting.remove(seq)
        self._num_waiting -= 1
        if not tenant.waiting:
            self._with_waiting.remove(tenant)

    def peek(self) -> Sequence | None:
        """The first of who was served least. Amortized O(log n)."""
        tenant = self._with_waiting.peek()
        return None if tenant is None else tenant.waiting.peek()

    def pop(self) -> Sequence:
        """O(log n). A prompt is charged for once, as far as it was not found computed."""
        tenant = self._with_waiting.peek()
        if tenant is None:
            raise IndexError("nobody waits")
        seq = tenant.waiting.pop()
        self._num_waiting -= 1
        if not tenant.waiting:
            self._with_waiting.remove(tenant)
        if not seq.was_admitted:
            self._tenants.charge(seq, PROMPT_WEIGHT * seq.num_uncomputed_tokens)
        return seq

    def victim(self, running: Iterable[Sequence]) -> Sequence:
        """The last of who was served most."""
        return max(running, key=self._place)

    def makes_way(self, waiting: Sequence, running: ListOf[Sequence]) -> Sequence | None:
        """The last of who was served most, if that is more than the waiting one was by a quantum and by what has to be
        computed again: tenants that take each other's place do so for at least as long as that costs."""
        served = self._tenants.of(waiting).served
        ahead = [seq for seq in running if self._tenants.of(seq).served > served + QUANTUM]
        if not ahead:
            return None
        last = self.victim(ahead)
        return last if self._tenants.of(last).served > served + QUANTUM + last.num_computed_tokens else None

    def hopeless(self, now_ns: int) -> Iterable[Sequence]:
        """Nobody, before the deadline itself."""
        return ()

    def on_step(self, now_ns: int, scheduled: Mapping[Sequence, ScheduledSequence]) -> None:
        """Each token that is drawn is charged for."""
        for seq, entry in scheduled.items():
            if entry.samples:
                self._tenants.charge(seq, OUTPUT_WEIGHT)

    def on_finished(self, seq: Sequence) -> None:
        """Its tenant may be idle from now on."""
        if seq in self._live:
            self._live.remove(seq)
            self._tenants.leave(seq)

    def _place(self, seq: Sequence) -> tuple[float, Key]:
        return self._tenants.of(seq).served, arrival_key(seq)
