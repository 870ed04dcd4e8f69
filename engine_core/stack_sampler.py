"""What the threads of this process were doing, by looking at their Python stacks now and then.

The result is in the format of collapsed stacks (Brendan Gregg's FlameGraph; ``py-spy record --format raw`` writes the
same), which speedscope opens. A thread that is in native code is seen where it called it. Looking needs the GIL, so one
that holds it is seen a little late, at the end of a bytecode.
"""

import sys
import threading
from collections import Counter
from pathlib import PurePath
from types import CodeType, FrameType


class StackSampler:
    """Counts stacks, as many as there are different ones; threads are told apart by their names."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, tuple[tuple[CodeType, int], ...]]] = Counter()

    def sample(self) -> None:
        """Look at every thread but the caller's."""
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        own = threading.get_ident()
        for ident, frame in sys._current_frames().items():
            if ident != own:
                self._counts[names.get(ident, "unknown thread"), _stack(frame)] += 1

    def collapsed(self) -> str:
        """A line for each stack: the thread, its functions from the outermost on, and how often it was seen."""
        lines = (
            f"{';'.join((_plain(name), *map(_spell, stack)))} {count}\n"
            for (name, stack), count in self._counts.most_common()
        )
        return "".join(lines)


def _stack(frame: FrameType | None) -> tuple[tuple[CodeType, int], ...]:
    found = []
    while frame is not None:
        found.append((frame.f_code, frame.f_lineno or 0))
        frame = frame.f_back
    return tuple(reversed(found))


def _spell(place: tuple[CodeType, int]) -> str:
    code, line = place
    path = "/".join(PurePath(code.co_filename).parts[-2:])
    return _plain(f"{code.co_qualname} ({path}:{line})")


def _plain(name: str) -> str:
    """Without what separates names, and lines."""
    return name.replace(";", ",").replace("\n", " ")
