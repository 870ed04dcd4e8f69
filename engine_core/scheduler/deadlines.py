"""Requests by deadline, so that those past it are found without a look at the others. Counts under every policy."""

from engine_core.scheduler.lazy_heap import LazyHeap
from engine_core.sequence import Request


class Deadlines:
    """Of the requests that have one and have not ended."""

    def __init__(self) -> None:
        self._requests = LazyHeap[Request]()

    def add(self, request: Request) -> None:
        """O(log n)."""
        if request.deadline_ns:
            self._requests.push(request, (request.deadline_ns,))

    def forget(self, request: Request) -> None:
        """It has ended."""
        if request in self._requests:
            self._requests.remove(request)

    @property
    def earliest_ns(self) -> int | None:
        """The next one; None if nobody has any."""
        key = self._requests.least_key()
        return None if key is None else key[0]

    def take_expired(self, now_ns: int) -> list[Request]:
        """Those whose deadline is ``now_ns`` or before; each is returned once."""
        expired = []
        while (first := self._requests.least_key()) is not None and first[0] <= now_ns:
            expired.append(self._requests.pop())
        return expired
