"""Requests whose grammar is being compiled: not in the scheduler yet, and not lost."""

from engine_core.sequence import Request
from ipc.messages import EventKind, WaitReason


class Compiling:
    """Held by id. Only the busy loop touches it."""

    def __init__(self) -> None:
        self._requests: dict[int, Request] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def __contains__(self, request_id: int) -> bool:
        return request_id in self._requests

    @property
    def num_sequences(self) -> int:
        """Of all of them."""
        return sum(len(request.sequences) for request in self._requests.values())

    def hold(self, request: Request, time_ns: int) -> None:
        """From now on it waits for its grammar."""
        self._requests[request.request_id] = request
        for seq in request.sequences:
            seq.wait_reason = WaitReason.GRAMMAR
            seq.record(EventKind.QUEUED, time_ns)
            seq.record(EventKind.BLOCKED, time_ns, WaitReason.GRAMMAR)

    def release(self, request_id: int) -> Request | None:
        """It is not held any more: its grammar is there, or its client is gone. None if it was not."""
        return self._requests.pop(request_id, None)

    def forget(self, owner: bytes) -> None:
        """A gateway is gone."""
        self._requests = {key: request for key, request in self._requests.items() if request.owner != owner}
