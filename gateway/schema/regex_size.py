"""How large a regular expression is once its counted repetitions are written out: what compiling it may cost.

Reads what all dialects share (escapes, classes, groups, ``{n,m}``) and judges nothing else: a broken expression is the
compiler's to refuse.
"""

import re

_COUNT = re.compile(r"\{(\d*)(?:,(\d*))?\}")
_LARGEST = 10**12  # the exact number of a bomb concerns nobody


def regex_size(source: str) -> int:
    """Characters and classes, each as often as the counts around it say: ``(ab{3}){2}`` is 8. Bounded."""
    groups = [0]  # the sizes of the groups that are open
    last, place = 0, 0  # the size of what a count would repeat
    while place < len(source):
        character = source[place]
        count = _COUNT.match(source, place) if character == "{" else None
        if count is not None:
            repeats = max(1, *(int(number[:12]) for number in count.groups() if number))
            groups[-1] += last * (repeats - 1)
            last, place = last * repeats, count.end()
        elif character == ")" and len(groups) > 1:
            last = groups.pop()
            groups[-1] += last
            place += 1
        elif character == "(":
            groups.append(0)
            place += 1
        else:
            place = _end_of_class(source, place) if character == "[" else place + 1 + (character == "\\")
            groups[-1] += 1
            last = 1
        if groups[-1] > _LARGEST:
            return _LARGEST
    return min(sum(groups), _LARGEST)


def _end_of_class(source: str, place: int) -> int:
    """Behind the bracket that closes the class which opens at ``place``; a bracket that comes first is a member."""
    place += 2 if source[place + 1 : place + 2] == "^" else 1
    place += source[place : place + 1] == "]"
    while place < len(source) and source[place] != "]":
        place += 1 + (source[place] == "\\")
    return place + 1
