"""Text that arrives in pieces, for parsers that are written as if it were all there.

Such a parser is a generator: where it needs more text it yields. What it does depends on the characters alone, not on
where the pieces end. What is kept unread between two pieces is shorter than a tag, so the work is linear.
"""

import re
from collections.abc import Callable, Generator
from typing import TypeVar

T = TypeVar("T")
Parsing = Generator[None, None, T]
Emit = Callable[[str], None]

SPACE = re.compile(r"[ \t\r\n]+")


class Tags:
    """Literal tags, to be found whole, or begun where the text so far ends."""

    __slots__ = ("_begun", "_longest", "_whole")

    def __init__(self, *tags: str) -> None:
        self._whole = re.compile("|".join(re.escape(tag) for tag in tags))
        self._begun = re.compile(rf"(?:{'|'.join(_beginning(tag) for tag in tags)})?\Z")
        self._longest = max(len(tag) for tag in tags)

    def find(self, text: str, position: int) -> re.Match[str] | None:
        return self._whole.search(text, position)

    def match(self, text: str, position: int) -> re.Match[str] | None:
        return self._whole.match(text, position)

    def may_begin(self, text: str, position: int) -> bool:
        """Whether all that is left of the text, perhaps nothing, begins a tag."""
        return self._begun.match(text, position) is not None

    def first_begun(self, text: str, position: int) -> int:
        """Where the end of the text may turn into a tag; the length of the text if it cannot."""
        begun = self._begun.search(text, max(position, len(text) - self._longest + 1))
        return begun.start() if begun else len(text)


def _beginning(tag: str) -> str:
    """A pattern of all beginnings of the tag but the whole one."""
    pattern = ""
    for character in reversed(tag[:-1]):
        pattern = re.escape(character) + (f"(?:{pattern})?" if pattern else "")
    return pattern


class TextReader:
    """``text`` from ``position`` on has not been read. Methods that wait for more are generators.

    Those that copy hand what they read to ``emit``.
    """

    __slots__ = ("has_ended", "position", "text")

    def __init__(self) -> None:
        self.text = ""
        self.position = 0
        self.has_ended = False

    def feed(self, text: str) -> None:
        self.text = self.text[self.position :] + text
        self.position = 0

    def take(self, end: int) -> str:
        """Reads up to the index ``end``."""
        taken = self.text[self.position : end]
        self.position = end
        return taken

    def peek(self) -> Parsing[str]:
        """The next character, "" at the end of the text."""
        while self.position == len(self.text) and not self.has_ended:
            yield
        return self.text[self.position : self.position + 1]

    def copy_while(self, run: re.Pattern[str], emit: Emit) -> Parsing[None]:
        """The longest run; the pattern must match any run of some characters, one at least."""
        while True:
            match = run.match(self.text, self.position)
            if match:
                emit(self.take(match.end()))
            if self.position < len(self.text) or self.has_ended:
                return
            yield

    def copy_mark(self, marks: str, emit: Emit) -> Parsing[str]:
        """White space, then one of the characters ``marks``; returns it, or "" if another one comes."""
        yield from self.copy_while(SPACE, emit)
        mark = yield from self.peek()
        if not mark or mark not in marks:
            return ""
        emit(self.take(self.position + 1))
        return mark

    def copy_tag(self, tags: Tags, emit: Emit) -> Parsing[str]:
        """One of the tags; returns it, or "" if something else comes.

        The beginning of a tag at which the text ends is handed on, too.
        """
        while not (match := tags.match(self.text, self.position)):
            if not tags.may_begin(self.text, self.position):
                return ""
            if self.has_ended:
                emit(self.take(len(self.text)))
                return ""
            yield
        tag = self.take(match.end())
        emit(tag)
        return tag

    def copy_until(self, tags: Tags, emit: Emit, emit_begun: Emit | None = None) -> Parsing[str]:
        """All text before the first tag. Reads over the tag and returns it; "" at the end of the text.

        The beginning of a tag at which the text ends is handed to ``emit_begun`` if there is one.
        """
        while not (match := tags.find(self.text, self.position)):
            emit(self.take(tags.first_begun(self.text, self.position)))
            if self.has_ended:
                (emit_begun or emit)(self.take(len(self.text)))
                return ""
            yield
        emit(self.take(match.start()))
        return self.take(match.end())

    def copy_rest(self, emit: Emit) -> Parsing[None]:
        """Everything up to the end of the text."""
        while (yield from self.peek()):
            emit(self.take(len(self.text)))
