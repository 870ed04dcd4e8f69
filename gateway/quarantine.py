"""Which request kills engines: found among those that were in the step when one died, and kept from the others.

Plain bookkeeping over ids: no clock, no engine. A suspect is cleared by its first output after the crash; as tokens are
the same each time, a request that kills engines does so again before it has any.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

NUM_GROUPS = 8
"""Suspects come back in so many groups, one after the other, so that few crashes find the one."""

MOST_STRIKES = 2
MOST_STRIKES_IF_KILLED = 3  # somebody else may have sent the signal


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a crash says. ``condemned``: the request that must not run again. ``is_narrowed``: the suspects were ones
    before, so this crash was part of finding the one."""

    condemned: int | None
    is_narrowed: bool


class Quarantine:
    """The suspects of past crashes and when each may run again."""

    def __init__(self) -> None:
        self._strikes: dict[int, int] = {}  # since its last output
        self._groups: list[list[int]] = []  # held back, the next one first
        self._released: set[int] = set()  # the group that runs and is not cleared yet

    @property
    def is_empty(self) -> bool:
        """Nobody is suspected."""
        return not self._strikes

    @property
    def held(self) -> frozenset[int]:
        """Requests that must not be given to an engine yet."""
        return frozenset(request_id for group in self._groups for request_id in group)

    def crash(self, in_step: Iterable[int], has_output: Callable[[int], bool], *, was_killed: bool) -> Verdict:
        """An engine died with these requests in its step. ``has_output``: whether it had sent one for a request.
        ``was_killed``: by a signal that anybody may send.

        All others may run again at once. So may those that had run well, after the first crash: most often the reason
        lies outside. Suspects that have not run well since they came come back one group after the other.
        """
        in_step = sorted(in_step)
        untested = [request_id for request_id in in_step if not has_output(request_id)]
        suspects = untested or in_step
        is_narrowed = bool(suspects) and all(request_id in self._strikes for request_id in suspects)
        for request_id in suspects:
            self._strikes[request_id] = self._strikes.get(request_id, 0) + 1
        waiting = [sorted(self._released), *self._groups]
        self._groups = [left for group in waiting if (left := [one for one in group if one not in suspects])]
        self._released = set()
        if len(suspects) == 1:
            (suspect,) = suspects
            if self._strikes[suspect] >= (MOST_STRIKES_IF_KILLED if was_killed else MOST_STRIKES):
                return Verdict(suspect, is_narrowed)
        if untested or is_narrowed:
            size = -(-len(suspects) // NUM_GROUPS)
            self._groups += [suspects[i : i + size] for i in range(0, len(suspects), size or 1)]
        return Verdict(None, is_narrowed)

    def release(self) -> list[int]:
        """The requests that may run now, if those before them are cleared."""
        if self._released or not self._groups:
            return []
        group = self._groups.pop(0)
        self._released = set(group)
        return group

    def clear(self, request_id: int) -> None:
        """It had an output, or nobody wants it any more."""
        if self._strikes.pop(request_id, None) is None:
            return
        self._released.discard(request_id)
        for group in self._groups:
            if request_id in group:
                group.remove(request_id)
        self._groups = [group for group in self._groups if group]
