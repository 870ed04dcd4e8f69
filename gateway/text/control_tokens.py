"""Keeps control tokens that are spelled in the content of a chat apart from the template's own.

Before rendering, special tokens inside content are replaced by marks; after it, those left in the text are the
template's. Marks and stand-ins hold a random number, so that no content can forge them. Knows nothing of templates.
"""

import re
import secrets
from collections.abc import Mapping
from typing import Any, TypeVar

import tokenizers

Value = TypeVar("Value")


class ControlTokens:
    """The special tokens of a tokenizer, as text to find, to escape and to encode."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        special_tokens: Mapping[int, tokenizers.AddedToken],
        *,
        normalizer_rewrites: bool,
    ) -> None:
        """Takes ``backend`` over and changes it: no one else may use it.

        ``normalizer_rewrites``: the normalizer can change characters other than spaces.
        """
        backend.encode_special_tokens = True  # from here on they are read as ordinary text
        # Digits alone survive what templates and normalizers do to a text (trim, upper, NFKC, JSON strings).
        nonce = f"{secrets.randbelow(10**30):030d}"
        by_text = {token.content: token_id for token_id, token in special_tokens.items() if token.content}
        # The longest first, as the tokenizer itself takes it where one is the beginning of another.
        texts = sorted(by_text, key=len, reverse=True)
        self._marks = {text: f"{nonce}0{index:06d}" for index, text in enumerate(texts)}
        self._texts = {mark: text for text, mark in self._marks.items()}
        self._stand_ins = {text: f"{nonce}1{index:06d}" for index, text in enumerate(texts)}
        self._special_ids = _add_stand_ins(backend, self._stand_ins, by_text, special_tokens)
        self._special_text = re.compile("|".join(map(re.escape, texts)) or "(?!)")
        self._special_text_or_mark = re.compile("|".join([*map(re.escape, texts), f"{nonce}0[0-9]{{6}}"]))
        self._backend = backend
        # A normalizer may turn content that does not spell a special token into one that is matched afterwards.
        self._may_hide = normalizer_rewrites and any(token.normalized for token in special_tokens.values())

    def may_occur_in(self, value: object) -> bool:
        """Whether a string anywhere in the JSON value could be read as a special token."""
        if self._may_hide:
            return True
        if isinstance(value, str):
            return self._special_text.search(value) is not None
        if isinstance(value, Mapping):
            return any(self.may_occur_in(key) or self.may_occur_in(item) for key, item in value.items())
        return isinstance(value, list | tuple) and any(map(self.may_occur_in, value))

    def escape(self, value: Value) -> Value:
        """The same JSON value with a mark in place of every special token that a string in it spells."""
        escaped: object = value
        if isinstance(value, str):
            escaped = self._special_text.sub(lambda match: self._marks[match[0]], value)
        elif isinstance(value, Mapping):
            escaped = {self.escape(key): self.escape(item) for key, item in value.items()}
        elif isinstance(value, list | tuple):
            escaped = [self.escape(item) for item in value]
        return escaped  # type: ignore[return-value]

    def unescape(self, text: str) -> str:
        """``text`` with the special tokens again where ``escape`` put marks."""
        return self._special_text_or_mark.sub(lambda match: self._texts.get(match[0], match[0]), text)

    def encode_ordinary(self, text: str) -> list[int]:
        """Ids of ``text`` without any special token."""
        return self._backend.encode(text, add_special_tokens=False).ids

    def encode_escaped(self, text: str) -> list[int]:
        """Ids of a text in which special tokens count and marks are the literal text that they stand for."""
        prepared = self._special_text_or_mark.sub(self._prepare, text)
        return [self._special_ids.get(token_id, token_id) for token_id in self.encode_ordinary(prepared)]

    def _prepare(self, match: re.Match[str]) -> str:
        return self._texts.get(match[0]) or self._stand_ins.get(match[0], match[0])


def normalizer_rewrites(normalizer: Mapping[str, Any] | None) -> bool:
    """Whether the ``normalizer`` entry of tokenizer.json can change characters other than spaces."""
    if normalizer is None or normalizer["type"] == "Prepend":
        return False
    if normalizer["type"] == "Sequence":
        return any(map(normalizer_rewrites, normalizer["normalizers"]))
    return not (normalizer["type"] == "Replace" and normalizer["pattern"] == {"String": " "})


def _add_stand_ins(
    backend: tokenizers.Tokenizer,
    stand_ins: Mapping[str, str],
    by_text: Mapping[str, int],
    special_tokens: Mapping[int, tokenizers.AddedToken],
) -> dict[int, int]:
    """Gives ``backend`` a token for each stand-in that behaves as its special token; ids of those by the new ids."""
    originals = {stand_in: by_text[text] for text, stand_in in stand_ins.items()}
    backend.add_tokens(
        [_stand_in_token(stand_in, special_tokens[original]) for stand_in, original in originals.items()]
    )
    added = backend.get_added_tokens_decoder()
    return {token_id: originals[token.content] for token_id, token in added.items() if token.content in originals}


def _stand_in_token(stand_in: str, token: tokenizers.AddedToken) -> tokenizers.AddedToken:
    return tokenizers.AddedToken(
        stand_in,
        lstrip=token.lstrip,
        rstrip=token.rstrip,
        single_word=token.single_word,
        normalized=False,  # found before normalization, wherever the template put it
        special=False,
    )
