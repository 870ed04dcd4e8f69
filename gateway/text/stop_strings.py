"""Finds stop strings in a text that arrives piece by piece, with work only for the new characters.

The match that is complete first wins; of those complete at the same character, the longest. So neither the order of
the list nor the borders of tokens matter. Knows nothing of tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ipc.errors import RequestError


@dataclass(frozen=True, slots=True)
class StopMatch:
    """The stop string that ended a text, and how many of its tokens made the text up to the last character of it."""

    stop: str
    num_tokens: int


class StopSearch:
    """Knuth, Morris and Pratt's automaton (doi 10.1137/0206024) for each stop string.

    ``num_held`` is the length of the text's longest end that some stop string begins with: it must not be sent yet.
    """

    __slots__ = ("_automata",)

    def __init__(self, stops: Sequence[str]) -> None:
        """Raises RequestError for an empty stop string."""
        if not all(stops):
            raise RequestError("A stop string must not be empty.", param="stop")
        self._automata = [_Automaton(stop) for stop in dict.fromkeys(stops)]

    @property
    def num_held(self) -> int:
        return max((automaton.num_matched for automaton in self._automata), default=0)

    def advance(self, text: str, *, may_match: bool) -> tuple[str, int] | None:
        """Continues with ``text``. Returns (stop string, its end as an index into ``text``) for a match.

        With ``may_match`` false a match that ends here is passed over. After a match the search is over.
        """
        best: tuple[str, int] | None = None
        for automaton in self._automata:
            end = automaton.advance(text, may_match)
            if end is not None and (best is None or (end, -len(automaton.stop)) < (best[1], -len(best[0]))):
                best = automaton.stop, end
        return best


class _Automaton:
    """``num_matched``: so many characters of ``stop`` are the end of the text so far. Always less than all."""

    __slots__ = ("_borders", "num_matched", "stop")

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self._borders = _borders(stop)
        self.num_matched = 0

    def advance(self, text: str, may_match: bool) -> int | None:
        """The end of the first match in ``text``, or None."""
        stop, borders, matched = self.stop, self._borders, self.num_matched
        index = 0
        while index < len(text):
            if not matched:
                index = text.find(stop[0], index)  # most text holds no beginning of a stop string
                if index < 0:
                    break
            character = text[index]
            while matched and stop[matched] != character:
                matched = borders[matched - 1]
            matched += stop[matched] == character
            index += 1
            if matched == len(stop):
                matched = borders[-1]
                if may_match:
                    self.num_matched = matched
                    return index
        self.num_matched = matched
        return None


def _borders(stop: str) -> list[int]:
    """For each prefix of ``stop``, the length of its longest proper prefix that is also its end."""
    borders = [0] * len(stop)
    length = 0
    for index in range(1, len(stop)):
        while length and stop[index] != stop[length]:
            length = borders[length - 1]
        length += stop[index] == stop[length]
        borders[index] = length
    return borders
