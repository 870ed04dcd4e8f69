"""Reasoning between two tags, at the beginning of the text.

The rule for white space (space, tab, CR, LF): next to a tag it is dropped, on both sides. Where no tag comes it stays:
a text without tags is content as it is, and reasoning that breaks off is reasoning to its last character.
"""

import enum
from typing import ClassVar

from gateway.reasoning.parser import ReasoningDelta
from gateway.text.stop_strings import StopSearch

_SPACE = " \t\r\n"


class _Part(enum.Enum):
    """What is being read."""

    BEGINNING = enum.auto()  # so far only white space and perhaps a piece of the opening tag
    REASONING = enum.auto()
    CONTENT = enum.auto()


class TaggedReasoning:
    """A ReasoningParser for tags that subclasses give. All spellings of a tag count alike.

    Only what stands first in a text opens reasoning, so an answer may speak of the tags; the first closing tag ends
    it. Where reasoning is open from the start, an opening tag that comes all the same is read over.
    """

    opening_tags: ClassVar[tuple[str, ...]]
    closing_tags: ClassVar[tuple[str, ...]]
    needs_special_tokens: ClassVar[bool] = False

    def __init__(self, *, starts_open: bool) -> None:
        self._is_open = starts_open
        self._part = _Part.BEGINNING
        self._space: list[str] = []  # withheld: it may stand next to a tag
        self._partial = ""  # withheld after that white space: it may be a piece of a tag
        self._drops_space = starts_open  # whether a tag came last
        self._closing = StopSearch(self.closing_tags)
        self._num_pushed = 0
        self._end_offset: int | None = None

    @classmethod
    def opens_in_prompt(cls, rendered_prompt: str) -> bool:
        """Whether the prompt ends with the opening tag, white space aside."""
        return rendered_prompt.rstrip(_SPACE).endswith(cls.opening_tags)

    @property
    def is_open(self) -> bool:
        """Whether what comes next is reasoning."""
        return self._is_open

    @property
    def end_offset(self) -> int | None:
        """The number of characters up to the end of the closing tag, without the white space after it."""
        return self._end_offset

    def push(self, text: str) -> ReasoningDelta:
        """Takes the next piece of the text."""
        self._num_pushed += len(text)
        delta = ReasoningDelta()
        if self._part is _Part.BEGINNING:
            text = self._read_beginning(text)
        if self._part is _Part.REASONING:
            delta.reasoning, text = self._read_reasoning(text)
        if self._part is _Part.CONTENT:
            delta.content = self._after_tag(text)
        return delta

    def finish(self) -> ReasoningDelta:
        """What was withheld: a piece of a tag is text like any other."""
        rest = self._after_tag("".join(self._space) + self._partial)
        self._space.clear()
        self._partial = ""
        return ReasoningDelta(reasoning=rest) if self._is_open else ReasoningDelta(content=rest)

    def _read_beginning(self, text: str) -> str:
        """Returns what belongs to the part that begins."""
        if not self._partial:
            inked = text.lstrip(_SPACE)
            self._space.append(text[: len(text) - len(inked)])
            text = inked
        self._partial += text
        tag = next((tag for tag in self.opening_tags if self._partial.startswith(tag)), "")
        if not tag and any(tag.startswith(self._partial) for tag in self.opening_tags):
            return ""
        rest = self._partial[len(tag) :] if tag else "".join(self._space) + self._partial
        self._space.clear()
        self._partial = ""
        self._is_open = self._drops_space = self._is_open or bool(tag)
        self._part = _Part.REASONING if self._is_open else _Part.CONTENT
        return rest

    def _read_reasoning(self, text: str) -> tuple[str, str]:
        """Returns reasoning, and what comes after the closing tag."""
        match = self._closing.advance(text, may_match=True)
        if match is None:
            text = self._partial + text
            begun = len(text) - self._closing.num_held
            self._partial = text[begun:]
            return self._before_tag(text[:begun]), ""
        tag, end = match
        reasoning = self._before_tag((self._partial + text[:end])[: -len(tag)])
        self._space.clear()
        self._partial = ""
        self._end_offset = self._num_pushed - len(text) + end
        self._part, self._is_open, self._drops_space = _Part.CONTENT, False, True
        return reasoning, text[end:]

    def _before_tag(self, text: str) -> str:
        """Withholds the white space at the end."""
        inked = text.rstrip(_SPACE)
        withheld = "".join(self._space) if inked else ""
        if inked:
            self._space.clear()
        self._space.append(text[len(inked) :])
        return self._after_tag(withheld + inked)

    def _after_tag(self, text: str) -> str:
        """Drops white space up to the first other character, if a tag came last."""
        if self._drops_space:
            text = text.lstrip(_SPACE)
            self._drops_space = not text
        return text
