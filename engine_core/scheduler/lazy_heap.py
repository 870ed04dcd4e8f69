"""A heap of things by fixed keys, from which any of them can be taken: a removed entry goes when it comes up.

Knows nothing of what it holds.
"""

import heapq
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

Key = tuple[int, ...]
Item = TypeVar("Item", bound=Hashable)


class LazyHeap(Generic[Item]):
    """Each item is in it at most once. Memory stays that of what is in it."""

    __slots__ = ("_entries", "_num_pushed", "_valid")

    def __init__(self) -> None:
        self._entries: list[tuple[Key, int, Item]] = []
        self._valid: dict[Item, int] = {}  # the number of its entry
        self._num_pushed = 0

    def __len__(self) -> int:
        return len(self._valid)

    def __contains__(self, item: object) -> bool:
        return item in self._valid

    def __iter__(self) -> Iterator[Item]:
        """In no particular order."""
        return iter(self._valid)

    @property
    def num_entries(self) -> int:
        """What it takes in memory, removed ones included."""
        return len(self._entries)

    def push(self, item: Item, key: Key) -> None:
        """O(log n). Raises ValueError if it is there already."""
        if item in self._valid:
            raise ValueError("it is in the heap already")
        self._num_pushed += 1
        self._valid[item] = self._num_pushed
        heapq.heappush(self._entries, (key, self._num_pushed, item))

    def remove(self, item: Item) -> None:
        """O(1) now, O(log n) when its entry comes up. Raises KeyError if it is not there."""
        del self._valid[item]
        if len(self._entries) > 64 and len(self._entries) > 4 * len(self._valid):
            self._entries = [entry for entry in self._entries if self._valid.get(entry[2]) == entry[1]]
            heapq.heapify(self._entries)

    def peek(self) -> Item | None:
        """The one with the least key, the first pushed among equals; None when empty. Amortized O(log n)."""
        entries, valid = self._entries, self._valid
        while entries and valid.get(entries[0][2]) != entries[0][1]:
            heapq.heappop(entries)
        return entries[0][2] if entries else None

    def least_key(self) -> Key | None:
        """The key of what ``peek`` shows."""
        return None if self.peek() is None else self._entries[0][0]

    def pop(self) -> Item:
        """Take out what ``peek`` shows. Raises IndexError when empty."""
        item = self.peek()
        if item is None:
            raise IndexError("the heap is empty")
        heapq.heappop(self._entries)
        del self._valid[item]
        return item
