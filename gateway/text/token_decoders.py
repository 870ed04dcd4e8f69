"""Turns token ids into text one at a time, never half a character.

One decoder kind for each way that tokenizer.json spells bytes: byte-level BPE, sentencepiece with byte fallback, and
anything else through the tokenizer's own decode on a bounded window. Knows nothing of stop strings or special tokens.
"""

import codecs
import re
from collections.abc import Mapping
from typing import Any, Protocol

import tokenizers

REPLACEMENT = "\ufffd"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TextDecoder(Protocol):
    """The decoding state of one sequence."""

    def add(self, token_id: int) -> str:
        """The text that ``token_id`` makes certain. Raises KeyError for an id without a token."""
        ...

    def flush(self) -> str:
        """The text of bytes that no later token will complete."""
        ...


class TokenSpelling(Protocol):
    """What a tokenizer's decoder does to single tokens; shared by all sequences, makes their decoders."""

    @property
    def max_token_bytes(self) -> int:
        """Most bytes of text that one token stands for."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of one token inside a text. Raises KeyError for an id without a token."""
        ...

    def new_decoder(self) -> TextDecoder: ...


def token_spelling(backend: tokenizers.Tokenizer, decoder: object, tokens: Mapping[int, str]) -> TokenSpelling:
    """The spelling for the ``decoder`` entry of tokenizer.json; ``tokens`` are all tokens by id."""
    steps = _steps(decoder)
    kinds = [step["type"] for step in steps]
    if kinds == ["ByteLevel"]:
        return ByteLevelSpelling(tokens)
    if (sentencepiece := _sentencepiece_steps(steps)) is not None:
        replacements, num_stripped = sentencepiece
        return SentencePieceSpelling(tokens, replacements, num_stripped)
    return WindowSpelling(backend, tokens)


def _steps(decoder: object) -> list[dict[str, Any]]:
    if not isinstance(decoder, dict):
        return []
    if decoder.get("type") == "Sequence":
        return [step for part in decoder["decoders"] for step in _steps(part)]
    return [decoder]


def _sentencepiece_steps(steps: list[dict[str, Any]]) -> tuple[list[tuple[str, str]], int] | None:
    """(replacements, leading spaces stripped) of Replace*, ByteFallback, Fuse, Strip?; None if it is not that."""
    kinds = [step["type"] for step in steps]
    num_replacements = kinds.index("ByteFallback") if "ByteFallback" in kinds else 0
    rest = kinds[num_replacements:]
    if rest not in (["ByteFallback", "Fuse"], ["ByteFallback", "Fuse", "Strip"]):
        return None
    replacements = []
    for step in steps[:num_replacements]:
        if step["type"] != "Replace" or "String" not in step["pattern"]:
            return None
        replacements.append((step["pattern"]["String"], step["content"]))
    if rest[-1] != "Strip":
        return replacements, 0
    strip = steps[-1]
    if strip["content"] != " " or strip["stop"] != 0:
        return None
    return replacements, strip["start"]


# --- byte-level BPE -------------------------------------------------------------------------------------------------


def byte_level_alphabet() -> dict[str, int]:
    """The printable character that stands for each byte (GPT-2's encoder.py): itself, else the next from U+0100 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    alphabet = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in printable)
    return alphabet | {chr(0x100 + index): byte for index, byte in enumerate(others)}


class ByteLevelSpelling:
    """GPT-2, Llama 3, Qwen, SmolLM2: a token is a string of bytes, the text is their UTF-8."""

    def __init__(self, tokens: Mapping[int, str]) -> None:
        alphabet = byte_level_alphabet()
        self._bytes = {token_id: _byte_level_bytes(token, alphabet) for token_id, token in tokens.items()}
        self.max_token_bytes = max(map(len, self._bytes.values()), default=1)

    def token_bytes(self, token_id: int) -> bytes:
        return self._bytes[token_id]

    def new_decoder(self) -> TextDecoder:
        return ByteLevelDecoder(self._bytes)


def _byte_level_bytes(token: str, alphabet: Mapping[str, int]) -> bytes:
    """A token with any character outside the alphabet (some added tokens) stands for its own UTF-8 as a whole."""
    try:
        return bytes([alphabet[character] for character in token])
    except KeyError:
        return token.encode()


class ByteLevelDecoder:
    """Incremental UTF-8; broken bytes become U+FFFD as in Unicode 3.9, "substitution of maximal subparts".

    Most tokens are whole characters: they are decoded at once, and the incremental decoder, which costs five times as
    much, sees only the bytes of characters that several tokens make.
    """

    __slots__ = ("_bytes", "_is_inside_character", "_utf8")

    def __init__(self, token_bytes: Mapping[int, bytes]) -> None:
        self._bytes = token_bytes
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._is_inside_character = False

    def add(self, token_id: int) -> str:
        data = self._bytes[token_id]
        if not self._is_inside_character:
            try:
                return data.decode()
            except UnicodeDecodeError:
                pass  # it ends inside a character, or is broken
        text = self._utf8.decode(data)
        self._is_inside_character = bool(self._utf8.getstate()[0])
        return text

    def flush(self) -> str:
        return self._utf8.decode(b"", final=True)


# --- sentencepiece with byte fallback -------------------------------------------------------------------------------


class SentencePieceSpelling:
    """Llama 2, Mistral, Gemma: a token is text with ▁ for a space, or one byte written <0xNN>."""

    def __init__(self, tokens: Mapping[int, str], replacements: list[tuple[str, str]], num_stripped: int) -> None:
        self._pieces: dict[int, str | int] = {}
        for token_id, token in tokens.items():
            for pattern, content in replacements:
                token = token.replace(pattern, content)
            byte = _BYTE_TOKEN.fullmatch(token)
            self._pieces[token_id] = int(byte[1], 16) if byte else token
        self._num_stripped = num_stripped
        self.max_token_bytes = max((len(self.token_bytes(token_id)) for token_id in self._pieces), default=1)

    def token_bytes(self, token_id: int) -> bytes:
        piece = self._pieces[token_id]
        return piece.encode() if isinstance(piece, str) else bytes([piece])

    def new_decoder(self) -> TextDecoder:
        return SentencePieceDecoder(self._pieces, self._num_stripped)


class SentencePieceDecoder:
    """Byte tokens make characters as soon as they are complete; each byte that cannot be part of one is a U+FFFD.

    The tokenizers library writes U+FFFD for *every* byte of a run of byte tokens with one broken character in it. To
    follow it, nothing of a run could be sent before its end; here the complete characters of such a run stay.
    """

    __slots__ = ("_num_to_strip", "_pending", "_pieces")

    def __init__(self, pieces: Mapping[int, str | int], num_stripped: int) -> None:
        self._pieces = pieces
        self._pending = b""  # the beginning of a character, at most 3 bytes
        self._num_to_strip = num_stripped  # spaces that the text may still lose at its beginning

    def add(self, token_id: int) -> str:
        piece = self._pieces[token_id]
        if isinstance(piece, int):
            text = self._add_byte(piece)
        elif self._pending:
            text = self._drop_pending() + piece
        else:
            text = piece
        return self._strip(text) if self._num_to_strip and text else text

    def flush(self) -> str:
        return self._drop_pending()

    def _add_byte(self, byte: int) -> str:
        self._pending += bytes([byte])
        text = ""
        while self._pending:
            try:
                text += self._pending.decode()
                self._pending = b""
            except UnicodeDecodeError as error:
                if error.end == len(self._pending) and error.reason == "unexpected end of data":
                    break
                text += REPLACEMENT * error.end  # error.start is 0: a complete character never stays pending
                self._pending = self._pending[error.end :]
        return text

    def _drop_pending(self) -> str:
        num_bytes, self._pending = len(self._pending), b""
        return REPLACEMENT * num_bytes

    def _strip(self, text: str) -> str:
        while self._num_to_strip and text.startswith(" "):
            text = text[1:]
            self._num_to_strip -= 1
        if text:
            self._num_to_strip = 0
        return text


# --- everything else ------------------------------------------------------------------------------------------------


class WindowSpelling:
    """WordPiece, Metaspace and others, whose tokens have a text only next to each other."""

    def __init__(self, backend: tokenizers.Tokenizer, tokens: Mapping[int, str]) -> None:
        self._backend, self._tokens = backend, tokens
        self.max_token_bytes = max((len(token.encode()) for token in tokens.values()), default=1)

    def token_bytes(self, token_id: int) -> bytes:
        """What the token adds to a text that it does not begin: its second occurrence in a row."""
        if token_id not in self._tokens:
            raise KeyError(token_id)
        once = self._backend.decode([token_id], skip_special_tokens=False)
        twice = self._backend.decode([token_id, token_id], skip_special_tokens=False)
        return twice[len(once) :].encode()

    def new_decoder(self) -> TextDecoder:
        return WindowDecoder(self._backend, self._tokens)


class WindowDecoder:
    """The text of a token is what it adds to the decoding of a few tokens before it.

    A text that ends in U+FFFD may be an incomplete character and waits for the next token, MAX_PENDING times at
    most: the window, and with it the cost of a token, is bounded.
    """

    NUM_CONTEXT = 4
    MAX_PENDING = 8

    __slots__ = ("_backend", "_context_text", "_num_context", "_tokens", "_window")

    def __init__(self, backend: tokenizers.Tokenizer, tokens: Mapping[int, str]) -> None:
        self._backend, self._tokens = backend, tokens
        self._window: list[int] = []
        self._num_context, self._context_text = 0, ""

    def add(self, token_id: int) -> str:
        if token_id not in self._tokens:
            raise KeyError(token_id)
        self._window.append(token_id)
        text = self._decode()
        num_pending = len(self._window) - self._num_context
        if text.endswith(REPLACEMENT) and num_pending < self.MAX_PENDING:
            return ""
        return self._advance(text)

    def flush(self) -> str:
        return self._advance(self._decode())

    def _advance(self, text: str) -> str:
        new_text = text[len(self._context_text) :]
        self._window = self._window[-self.NUM_CONTEXT :]
        self._num_context, self._context_text = len(self._window), self._decode()
        return new_text

    def _decode(self) -> str:
        return self._backend.decode(self._window, skip_special_tokens=False)
