"""Whose requests are in the step that runs: written before each launch where it outlives the writer (design 8).

A small file that the engine maps into memory: what it wrote there is read by its supervisor after the engine has
died, however it died. The file belongs to one incarnation.
"""

import mmap
from array import array
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

NUM_STEPS = 2  # launched and not committed yet, at most
_WORD = 8


class Journal(Protocol):
    """What the busy loop says of its steps, numbered upwards."""

    def begin(self, step: int, request_ids: Iterable[int]) -> None:
        """The step is about to be launched."""

    def end(self, step: int) -> None:
        """The step's results are taken in."""


class NoJournal:
    """For an engine that nobody watches."""

    def begin(self, step: int, request_ids: Iterable[int]) -> None:
        """Nothing."""

    def end(self, step: int) -> None:
        """Nothing."""


class StepJournal:
    """A file [NUM_STEPS] of (count, then (id, whether it has been through a step) [capacity]), all u64. A count is
    written last and erased first."""

    def __init__(self, path: Path, capacity: int) -> None:
        """``capacity``: most sequences in a step. Raises OSError when the file cannot be made."""
        self._capacity = capacity
        self._area = 1 + 2 * capacity
        self._steps: list[list[int]] = [[] for _ in range(NUM_STEPS)]
        self._tested: set[int] = set()
        size = NUM_STEPS * self._area * _WORD
        with path.open("xb") as file:
            file.truncate(size)
        with path.open("r+b") as file:
            self._words = memoryview(mmap.mmap(file.fileno(), size)).cast("Q")

    def begin(self, step: int, request_ids: Iterable[int]) -> None:
        """Choices of one request count once."""
        ids = self._steps[step % NUM_STEPS] = sorted(set(request_ids))
        entries = array("Q", [word for request_id in ids for word in (request_id, request_id in self._tested)])
        start = step % NUM_STEPS * self._area
        self._words[start + 1 : start + 1 + len(entries)] = memoryview(entries)
        self._words[start] = len(ids)

    def end(self, step: int) -> None:
        """They are out of it."""
        self._words[step % NUM_STEPS * self._area] = 0
        if len(self._tested) > 4 * self._capacity:  # most have ended; who has not is soon in it again
            self._tested.clear()
        self._tested.update(self._steps[step % NUM_STEPS])


def read_journal(path: Path) -> dict[int, bool]:
    """The requests whose step had begun and not ended, and whether they had been through one before; none where there
    is no whole file, or no way to read it now: its engine died early."""
    try:
        words = array("Q", path.read_bytes())
    except (OSError, ValueError):
        return {}
    area = len(words) // NUM_STEPS
    found: dict[int, bool] = {}
    for start in range(0, area * NUM_STEPS, area or 1):
        count = min(words[start], (area - 1) // 2)
        for place in range(start + 1, start + 1 + 2 * count, 2):
            found[words[place]] = found.get(words[place], False) or words[place + 1] == 1
    return found
