"""What has happened to one request in flight, as far as a look at it from outside is to show: no tokens, no text."""

from collections.abc import Iterable
from dataclasses import dataclass

from ipc.messages import Event, EventKind, WaitReason

_PREEMPTED = (EventKind.PREEMPTED, EventKind.PREEMPTED_BY_SWAP)
_ENDS_WAIT = (EventKind.ADMITTED, EventKind.RESUMED)
_IN_LINE = (EventKind.QUEUED, EventKind.GRAMMAR_READY)


@dataclass(frozen=True, slots=True)
class Wait:
    """``reason``: what was waited for. Times in nanoseconds, ``end_ns`` 0: it has not ended."""

    reason: str
    start_ns: int
    end_ns: int = 0


@dataclass(slots=True)
class RequestHistory:
    """``first_output_ns``: when an engine had the first token, 0: none yet. ``accepted_at``: how many reports the
    present engine had sent before it took the request, None: it has not. ``wait``: the last one, over or not."""

    first_output_ns: int = 0
    accepted_at: int | None = None
    num_preemptions: int = 0
    num_restarts: int = 0
    wait: Wait | None = None

    def begin(self, time_ns: int) -> None:
        """An engine has an output of it, whichever."""
        if not self.first_output_ns:
            self.first_output_ns = time_ns

    def was_accepted_before(self, num_reports: int) -> bool:
        """The present engine knew of it when it sent the last of so many reports."""
        return self.accepted_at is not None and self.accepted_at < num_reports

    def observe(self, events: Iterable[Event]) -> None:
        """Of the engine, in order."""
        for kind, time_ns, value in events:
            if kind == EventKind.BLOCKED:
                self._begin_wait(WaitReason(value).name.lower(), time_ns)
            elif kind in _IN_LINE:
                self._begin_wait(WaitReason.POLICY.name.lower(), time_ns)
            elif kind in _PREEMPTED:
                self.num_preemptions += 1
                self._begin_wait("preempted", time_ns)
            elif kind in _ENDS_WAIT and self.wait is not None and not self.wait.end_ns:
                self.wait = Wait(self.wait.reason, self.wait.start_ns, time_ns)

    def _begin_wait(self, reason: str, time_ns: int) -> None:
        """One that changes its reason is the same wait."""
        is_same = self.wait is not None and not self.wait.end_ns
        self.wait = Wait(reason, self.wait.start_ns if self.wait is not None and is_same else time_ns)
