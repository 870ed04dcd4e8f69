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
    """A file [NUM_STEPS] of (count u64, ids u64 [capacity]); a count is written last and erased first."""

    def __init__(self, path: Path, capacity: int) -> None:
        """``capacity``: most sequences in a step. Raises OSError when the file cannot be made."""
        self._area = 1 + capacity
        size = NUM_STEPS * self._area * _WORD
        with path.open("xb") as file:
            file.truncate(size)
        with path.open("r+b") as file:
            self._words = memoryview(mmap.mmap(file.fileno(), size)).cast("Q")

    def begin(self, step: int, request_ids: Iterable[int]) -> None:
        """Choices of one request count once."""
        ids = array("Q", sorted(set(request_ids)))
        start = step % NUM_STEPS * self._area
        self._words[start + 1 : start + 1 + len(ids)] = memoryview(ids)
        self._words[start] = len(ids)

    def end(self, step: int) -> None:
        """They are out of it."""
        self._words[step % NUM_STEPS * self._area] = 0


def read_journal(path: Path) -> frozenset[int]:
    """The requests whose step had begun and not ended; none where there is no whole file: its engine died early, or the
    system does not let us read now."""
    try:
        words = array("Q", path.read_bytes())
    except (OSError, ValueError):
        return frozenset()
    area = len(words) // NUM_STEPS
    found: set[int] = set()
    for start in range(0, area * NUM_STEPS, area or 1):
        found.update(words[start + 1 : start + 1 + min(words[start], area - 1)])
    return frozenset(found)
