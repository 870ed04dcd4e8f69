"""What a reasoning parser is: it tells a model's thoughts from its answer, as the text comes.

However the text is cut into pieces, both come to the same.
"""

from dataclasses import dataclass
from typing import ClassVar, Protocol


@dataclass(slots=True)
class ReasoningDelta:
    """What one piece of text added."""

    reasoning: str = ""
    content: str = ""


class ReasoningParser(Protocol):
    """The parser of one response.

    ``opening_tags``, ``closing_tags``: spellings that count alike, the usual one first. ``needs_special_tokens``: they
    are special tokens of the tokenizer, which must stay in the text.
    """

    needs_special_tokens: ClassVar[bool]
    opening_tags: ClassVar[tuple[str, ...]]
    closing_tags: ClassVar[tuple[str, ...]]

    def __init__(self, *, starts_open: bool) -> None:
        """``starts_open``: the prompt ended with the opening tag, so the text goes on with reasoning."""

    @classmethod
    def opens_in_prompt(cls, rendered_prompt: str) -> bool:
        """Whether the prompt ends with the opening tag."""

    @property
    def is_open(self) -> bool:
        """Whether what comes next is reasoning, as far as the text so far tells."""

    @property
    def end_offset(self) -> int | None:
        """How many characters were pushed up to the end of the closing tag; None while there is none.

        The white space after the tag is not counted.
        """

    def push(self, text: str) -> ReasoningDelta:
        """Takes the next piece of the text."""

    def finish(self) -> ReasoningDelta:
        """The text is over: what was withheld. Nothing is pushed afterwards."""
