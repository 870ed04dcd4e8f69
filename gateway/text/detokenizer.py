"""The text of one output as its tokens arrive: no half characters, no beginnings of stop strings.

Owns what was decoded, what is held back and where the text ended. The cost of a token does not depend on how many
came before it. Knows nothing of engines or of how text is sent.
"""

from array import array
from collections.abc import Sequence

from gateway.text.stop_strings import StopMatch, StopSearch
from gateway.text.tokenizer import Tokenizer
from ipc.errors import EngineError


class IncrementalDetokenizer:
    """All that ``push`` and ``finish`` return, one after the other, is ``tokenizer.decode`` of all ids.

    With stop strings it is that text up to the first match (see stop_strings.py), or through its last character with
    ``include_stop_str_in_output``. A stop string that is complete within the first ``min_tokens`` tokens does not
    count; one that begins there and is complete later does. Skipped special tokens are no text, so no stop string
    matches them. A token that ended the output by its id and must not show is simply not pushed.

    ``num_tokens`` is the number of tokens taken, none after a match; ``stop_match`` says whether and where the text
    ended. Look at it after ``finish`` too: text that was waiting for more bytes can complete a stop string.
    """

    __slots__ = (
        "_decoder",
        "_held",
        "_include_stop",
        "_min_tokens",
        "_num_decoded",
        "_parts",
        "_search",
        "_skipped_ids",
        "_token_offsets",
        "num_tokens",
        "stop_match",
    )

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        skip_special_tokens: bool = True,
        stop: Sequence[str] = (),
        include_stop_str_in_output: bool = False,
        min_tokens: int = 0,
    ) -> None:
        self._decoder = tokenizer.new_decoder()
        self._skipped_ids = tokenizer.special_ids if skip_special_tokens else frozenset[int]()
        self._search = StopSearch(stop) if stop else None
        self._include_stop = include_stop_str_in_output
        self._min_tokens = min_tokens
        self._parts: list[str] = []  # returned so far
        self._held = ""  # decoded, but perhaps the beginning of a stop string
        self._num_decoded = 0  # characters decoded
        self._token_offsets = array("q")
        self.num_tokens = 0
        self.stop_match: StopMatch | None = None

    @property
    def text(self) -> str:
        """All text returned so far."""
        if len(self._parts) > 1:
            self._parts = ["".join(self._parts)]
        return self._parts[0] if self._parts else ""

    @property
    def token_offsets(self) -> Sequence[int]:
        """Where the text of each token taken begins, in characters of the whole decoded text.

        A token that arrives while a character is incomplete has the position of that character. After a stop
        string the positions are those in the text before it was cut, so they may lie beyond its end.
        """
        return self._token_offsets

    def push(self, token_ids: Sequence[int]) -> str:
        """Takes the next tokens and returns the text that may be sent now. Tokens after a match are ignored.

        Raises EngineError for an id without a token.
        """
        released = ""
        for token_id in token_ids:
            if self.stop_match is not None:
                break
            self.num_tokens += 1
            self._token_offsets.append(self._num_decoded)
            if token_id in self._skipped_ids:
                continue
            try:
                text = self._decoder.add(token_id)
            except KeyError as error:
                raise EngineError(f"The engine sent token id {token_id}, which the tokenizer does not have.") from error
            if text:
                released += self._release(text)
        return self._keep(released)

    def finish(self) -> str:
        """No more tokens follow: returns all text that was held back, broken bytes as U+FFFD."""
        if self.stop_match is not None:
            return ""
        text = self._decoder.flush()
        released = self._release(text) if text else ""
        if self.stop_match is None:
            released, self._held = released + self._held, ""
        return self._keep(released)

    def _release(self, text: str) -> str:
        """Takes decoded text; returns the part of it, and of what was held, that is certain."""
        self._num_decoded += len(text)
        if self._search is None:
            return text
        num_held_before = len(self._held)
        text_with_held = self._held + text
        match = self._search.advance(text, may_match=self.num_tokens > self._min_tokens)
        if match is None:
            end = len(text_with_held) - self._search.num_held
            self._held = text_with_held[end:]
            return text_with_held[:end]
        stop, end = match
        self.stop_match, self._held = StopMatch(stop, self.num_tokens), ""
        end += num_held_before - (0 if self._include_stop else len(stop))
        return text_with_held[:end]

    def _keep(self, text: str) -> str:
        if text:
            self._parts.append(text)
        return text
