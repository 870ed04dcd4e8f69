"""The scheduler's events as they stand in a trace: their names, and what each says."""

from collections.abc import Mapping

from ipc.messages import EventKind, WaitReason
from observability.gen_ai import AttributeValue
from observability.request_trace import CHUNK

TracedEvent = tuple[str, Mapping[str, AttributeValue]]


def traced_event(kind: int, value: int) -> TracedEvent | None:
    """Name and attributes. None: the phase ``queue`` begins there, which says it."""
    match kind:
        case EventKind.ADMITTED:
            return "admitted", {}
        case EventKind.BLOCKED:
            return "blocked", {"reason": WaitReason(value).name.lower()}
        case EventKind.CACHE_HIT:
            return "cache_hit", {"tokens": value}
        case EventKind.CHUNK:
            return CHUNK, {"tokens": value}
        case EventKind.PREEMPTED:
            return "preempted", {"by": shown_id(value), "kind": "recompute"}
        case EventKind.PREEMPTED_BY_SWAP:
            return "preempted", {"by": shown_id(value), "kind": "swap"}
        case EventKind.RESUMED:
            return "resumed", {"tokens": value}
        case EventKind.GRAMMAR_READY:
            return "grammar_ready", {}
        case EventKind.RESTARTED:
            return "restarted", {}
        case _:
            return None


def as_int64(number: int) -> int:
    """A seed of 64 bits as a trace can hold it, and as a client may send it to get the same."""
    return number - 2**64 if number >= 2**63 else number


def shown_id(request_id: int) -> str:
    """An engine's id of a request: it has 64 bits, one more than a number in a trace."""
    return format(request_id, "016x")
