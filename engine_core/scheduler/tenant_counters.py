"""Virtual token counters: what each tenant was served, by its weight (VTC, arXiv 2401.00588).

A counter only grows, so a heap may hold an old value: it is put right when it comes up, and charging costs nothing.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field

from engine_core.scheduler.lazy_heap import LazyHeap
from engine_core.sequence import Sequence


@dataclass(slots=True, eq=False)
class Tenant:
    """``served`` is in tokens, divided by the weight. Active: it has sequences that wait or run."""

    name: str
    served: float = 0.0
    num_active: int = 0  # sequences
    waiting: LazyHeap[Sequence] = field(default_factory=LazyHeap)  # by arrival


class LeastServed:
    """A heap of tenants by counter, with entries that are too low or no longer wanted."""

    def __init__(self) -> None:
        self._entries: list[tuple[float, int, Tenant]] = []
        self._valid: dict[Tenant, int] = {}
        self._num_pushed = 0

    def push(self, tenant: Tenant) -> None:
        """It counts from now on; O(log n)."""
        self._num_pushed += 1
        self._valid[tenant] = self._num_pushed
        heapq.heappush(self._entries, (tenant.served, self._num_pushed, tenant))

    def remove(self, tenant: Tenant) -> None:
        """It counts no more; its entry goes when it comes up, or when most are such."""
        del self._valid[tenant]
        if len(self._entries) > 64 and len(self._entries) > 4 * len(self._valid):
            self._entries = [entry for entry in self._entries if self._valid.get(entry[2]) == entry[1]]
            heapq.heapify(self._entries)

    def peek(self) -> Tenant | None:
        """Who was served least, the first pushed among equals; None if nobody counts. Amortized O(log n)."""
        entries = self._entries
        while entries:
            served, number, tenant = entries[0]
            if self._valid.get(tenant) != number:
                heapq.heappop(entries)
            elif served < tenant.served:
                heapq.heapreplace(entries, (tenant.served, number, tenant))
            else:
                return tenant
        return None


class TenantCounters:
    """All tenants that matter: those that are active, and idle ones that were served more than the least of them."""

    def __init__(self) -> None:
        self._tenants: dict[str, Tenant] = {}
        self._active = LeastServed()
        self._idle = LeastServed()
        self._least = 0.0  # the least counter of the active ones; while there are none, of the last one

    def __len__(self) -> int:
        return len(self._tenants)

    def __iter__(self) -> Iterator[Tenant]:
        return iter(self._tenants.values())

    def of(self, seq: Sequence) -> Tenant:
        """The tenant of a sequence that waits or runs. Raises KeyError if it is not known."""
        return self._tenants[seq.request.tenant]

    def enter(self, seq: Sequence) -> Tenant:
        """A sequence begins to wait. A tenant that was idle is lifted to the least of the active ones: it has not
        saved up what it did not use."""
        name = seq.request.tenant
        tenant = self._tenants.get(name)
        if tenant is None:
            tenant = self._tenants[name] = Tenant(name)
        elif not tenant.num_active:
            self._idle.remove(tenant)
        if not tenant.num_active:
            tenant.served = max(tenant.served, self._rise())
            self._active.push(tenant)
        tenant.num_active += 1
        return tenant

    def leave(self, seq: Sequence) -> None:
        """A sequence has ended."""
        tenant = self.of(seq)
        tenant.num_active -= 1
        if not tenant.num_active:
            self._rise()
            self._active.remove(tenant)
            self._idle.push(tenant)
            self._rise()

    def charge(self, seq: Sequence, num_tokens: float) -> None:
        """Its tenant was served so many weighted tokens."""
        self.of(seq).served += num_tokens / seq.request.weight

    def _rise(self) -> float:
        """The least counter as of now. Idle tenants below it are forgotten: they would be lifted to it anyway."""
        first = self._active.peek()
        if first is not None:
            self._least = max(self._least, first.served)
        while (idle := self._idle.peek()) is not None and idle.served <= self._least:
            self._idle.remove(idle)
            del self._tenants[idle.name]
        return self._least
