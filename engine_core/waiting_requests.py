"""Which requests wait as a whole, for what and since when: for ``Stats``, so that whoever looks at a server sees it."""

from collections.abc import Iterable
from itertools import islice

from engine_core.sequence import Request, Sequence, SequenceStatus
from ipc.messages import MOST_WAITING_REQUESTS, EventKind, WaitingRequest, WaitReason

_BEGINS_WAIT = (EventKind.BLOCKED, EventKind.PREEMPTED, EventKind.PREEMPTED_BY_SWAP, EventKind.QUEUED)


def waiting_requests(requests: Iterable[Request]) -> tuple[WaitingRequest, ...]:
    """Of requests in the order of their coming, those of which no choice runs."""
    return tuple(islice((_describe(one) for one in requests if _waits(one)), MOST_WAITING_REQUESTS))


def _waits(request: Request) -> bool:
    return all(seq.status is not SequenceStatus.RUNNING for seq in request.sequences) and not request.is_finished


def _describe(request: Request) -> WaitingRequest:
    """By its first choice that has not ended: the others wait for it, or like it. One that is not the next by the
    policy was not even looked at."""
    seq = next(seq for seq in request.sequences if not seq.is_finished)
    reason = WaitReason.POLICY if seq.wait_reason is None else seq.wait_reason
    return (request.request_id, int(reason), _since_ns(seq))


def _since_ns(seq: Sequence) -> int:
    """What it has not sent yet is what has happened since it ran last."""
    known = (time_ns for kind, time_ns, _ in seq.events if kind in _BEGINS_WAIT)
    return next(known, seq.request.arrival_ns)
