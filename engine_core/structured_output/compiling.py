"""Requests whose grammar is being compiled: not in the scheduler yet, and not lost."""

from collections.abc import Iterator

from engine_core.scheduler.deadlines import Deadlines
from engine_core.sequence import Request, Sequence
from ipc.messages import EventKind, WaitReason


class Compiling:
    """Held by id. Only the busy loop touches it."""

    def __init__(self) -> None:
        self._requests: dict[int, Request] = {}
        self._deadlines = Deadlines()

    def __len__(self) -> int:
        return len(self._requests)

    def __contains__(self, request_id: int) -> bool:
        return request_id in self._requests

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests.values())

    @property
    def num_sequences(self) -> int:
        """Of all of them."""
        return sum(len(request.sequences) for request in self._requests.values())

    def hold(self, request: Request, time_ns: int) -> None:
        """From now on it waits for its grammar."""
        self._requests[request.request_id] = request
        self._deadlines.add(request)
        for seq in request.sequences:
            seq.wait_reason = WaitReason.GRAMMAR
            seq.record(EventKind.QUEUED, time_ns)
            seq.record(EventKind.BLOCKED, time_ns, WaitReason.GRAMMAR)

    def release(self, request_id: int) -> Request | None:
        """It is not held any more: its grammar is there, or its client is gone. None if it was not."""
        request = self._requests.pop(request_id, None)
        if request is not None:
            self._deadlines.forget(request)
        return request

    def take_choice(self, request_id: int, choice: int) -> Sequence | None:
        """It has ended; the request is held for its other choices alone. None if it was not held."""
        request = self._requests.get(request_id)
        if request is None:
            return None
        found = next((seq for seq in request.sequences if seq.choice == choice), None)
        if found is not None:
            request.sequences.remove(found)
        if not request.sequences:
            self.release(request_id)
        return found

    def take_late(self, now_ns: int) -> list[Request]:
        """Those whose deadline is over; they are not held any more, and what is compiled for them is for nobody."""
        late = self._deadlines.take_expired(now_ns)
        for request in late:
            del self._requests[request.request_id]
        return late

    def seconds_to_deadline(self, now_ns: int) -> float | None:
        """Until there is one to take; None if nobody has a deadline."""
        earliest_ns = self._deadlines.earliest_ns
        return None if earliest_ns is None else max(0, earliest_ns - now_ns) * 1e-9

    def forget(self, owner: bytes) -> None:
        """A gateway is gone."""
        for request in [request for request in self._requests.values() if request.owner == owner]:
            self.release(request.request_id)
