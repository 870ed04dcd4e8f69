"""How many tokens a text has at least, where a tokenizer allows such a bound at all.

With it a text that is far too long is refused before it is tokenized. Reads the parts of tokenizer.json.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gateway.text.token_decoders import byte_level_alphabet

# NFC makes a text shorter, at most by 3.5: U+1FBE U+0308 U+0301 (7 bytes) become U+0390 (2 bytes).
_NFC_SHRINKS_BY = 4
_PRE_TOKENIZERS_THAT_KEEP_ALL = {"ByteLevel", "Metaspace", "Digits", "UnicodeScripts"}


@dataclass(frozen=True, slots=True)
class TokenBounds:
    """``max_bytes``: most bytes of UTF-8 that a token covers, None for any number; ``dropped``: bytes without token."""

    max_bytes: int | None
    dropped: bytes = b""

    def min_tokens(self, text: str) -> int:
        """A lower bound of the number of tokens of ``text``, in one fast pass; 0 if there is none."""
        if self.max_bytes is None:
            return 0
        encoded = text.encode(errors="surrogatepass")  # whether the text can be encoded is not asked here
        return -(-len(encoded.translate(None, self.dropped)) // self.max_bytes)


def token_bounds(parts: Mapping[str, Any], max_token_bytes: int) -> TokenBounds:
    """The bounds of a tokenizer, ``parts`` of tokenizer.json, whose longest token stands for ``max_token_bytes``.

    There is none where white space is dropped or squeezed, or where one unknown token takes any run of characters.
    """
    dropped = _dropped_bytes(parts["model"])
    factor = _normalizer_factor(parts.get("normalizer"))
    if dropped is None or factor is None or not _keeps_all(parts.get("pre_tokenizer")):
        return TokenBounds(None)
    if any(token["lstrip"] or token["rstrip"] for token in parts.get("added_tokens", [])):
        return TokenBounds(None)
    return TokenBounds(max(max_token_bytes, 1) * factor, dropped)


def _dropped_bytes(model: Mapping[str, Any]) -> bytes | None:
    """Bytes that get no token; None if there is no telling.

    Byte-level BPE without an unknown token leaves out a byte that was not in its training text (SmolLM2: U+0004).
    """
    if model["type"] != "BPE":
        return None
    vocabulary = model["vocab"]
    if model["byte_fallback"]:
        return b"" if all(f"<0x{byte:02X}>" in vocabulary for byte in range(256)) else None
    missing = [byte for character, byte in byte_level_alphabet().items() if character not in vocabulary]
    return None if model["unk_token"] is not None and missing else bytes(missing)


def _keeps_all(pre_tokenizer: Mapping[str, Any] | None) -> bool:
    if pre_tokenizer is None or pre_tokenizer["type"] in _PRE_TOKENIZERS_THAT_KEEP_ALL:
        return True
    if pre_tokenizer["type"] == "Sequence":
        return all(map(_keeps_all, pre_tokenizer["pretokenizers"]))
    return pre_tokenizer["type"] in ("Split", "Punctuation") and pre_tokenizer["behavior"] != "Removed"


def _normalizer_factor(normalizer: Mapping[str, Any] | None) -> int | None:
    """By how much the normalizer may shrink a text; None if there is no telling."""
    if normalizer is None or normalizer["type"] == "Prepend":
        return 1
    if normalizer["type"] == "NFC":
        return _NFC_SHRINKS_BY
    if normalizer["type"] == "Replace" and normalizer["pattern"] == {"String": " "} and normalizer["content"]:
        return 1
    if normalizer["type"] != "Sequence":
        return None
    product = 1
    for part in normalizer["normalizers"]:
        factor = _normalizer_factor(part)
        if factor is None:
            return None
        product *= factor
    return product
