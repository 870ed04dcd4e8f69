"""The decoders against the tokenizers library's own decode of the whole."""

import codecs
from pathlib import Path

import pytest
import text_models
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from gateway.text.token_decoders import (
    ByteLevelSpelling,
    SentencePieceSpelling,
    WindowDecoder,
    WindowSpelling,
    token_spelling,
)
from gateway.text.tokenizer import Tokenizer


def one_replacement_per_byte(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return "\ufffd" * (error.end - error.start), error.end


codecs.register_error("one_replacement_per_byte", one_replacement_per_byte)


def decode_in_steps(tokenizer: Tokenizer, ids: list[int]) -> str:
    decoder = tokenizer.new_decoder()
    return "".join(map(decoder.add, ids)) + decoder.flush()


EXACT_KINDS = [kind for kind in text_models.KINDS if kind != "sentencepiece"]


@pytest.mark.parametrize("kind", EXACT_KINDS)
@given(data=st.data())
def test_any_ids_decode_as_the_library_does(
    folders: dict[str, Path], all_tokenizers: dict[str, Tokenizer], kind: str, data: st.DataObject
) -> None:
    tokenizer = all_tokenizers[kind]
    valid = [token_id for token_id in range(tokenizer.num_token_ids) if tokenizer.has_token(token_id)]
    ids = data.draw(st.lists(st.sampled_from(valid), max_size=30))
    oracle = tokenizers.Tokenizer.from_file(str(folders[kind] / "tokenizer.json"))
    assert decode_in_steps(tokenizer, ids) == oracle.decode(ids, skip_special_tokens=False)
    for skip_special_tokens in (False, True):
        expected = oracle.decode(ids, skip_special_tokens=skip_special_tokens)
        assert tokenizer.decode(ids, skip_special_tokens=skip_special_tokens) == expected


@given(data=st.binary(max_size=24))
def test_any_bytes_decode_as_the_library_does(folders: dict[str, Path], byte_level: Tokenizer, data: bytes) -> None:
    by_bytes = {byte_level.token_bytes(token_id): token_id for token_id in range(byte_level.vocab_size)}
    ids = [by_bytes[bytes([byte])] for byte in data]
    oracle = tokenizers.Tokenizer.from_file(str(folders["byte_level"] / "tokenizer.json"))
    assert decode_in_steps(byte_level, ids) == oracle.decode(ids)


def test_special_tokens_outside_the_byte_alphabet(folders: dict[str, Path], byte_level: Tokenizer) -> None:
    oracle = tokenizers.Tokenizer.from_file(str(folders["byte_level"] / "tokenizer.json"))
    for token in ("<｜end▁é｜>", "<é>"):
        token_id = byte_level.token_id(token)
        assert token_id is not None
        assert decode_in_steps(byte_level, [token_id]) == oracle.decode([token_id], skip_special_tokens=False)


@given(text=st.text(max_size=30))
def test_sentencepiece_texts_decode_as_the_library_does(
    folders: dict[str, Path], sentencepiece: Tokenizer, text: str
) -> None:
    oracle = tokenizers.Tokenizer.from_file(str(folders["sentencepiece"] / "tokenizer.json"))
    ids = sentencepiece.encode(text, add_special_tokens=False)
    assert decode_in_steps(sentencepiece, ids) == oracle.decode(ids, skip_special_tokens=False)


@given(data=st.data())
def test_sentencepiece_ids_without_bytes_decode_as_the_library_does(
    folders: dict[str, Path], sentencepiece: Tokenizer, data: st.DataObject
) -> None:
    oracle = tokenizers.Tokenizer.from_file(str(folders["sentencepiece"] / "tokenizer.json"))
    byte_ids = {sentencepiece.token_id(token) for token in text_models.BYTE_TOKENS}
    others = [token_id for token_id in range(sentencepiece.vocab_size) if token_id not in byte_ids]
    spaces = [token_id for token_id in others if not sentencepiece.token_bytes(token_id).strip(b" ")]
    assert spaces
    ids = data.draw(st.lists(st.sampled_from(spaces) | st.sampled_from(others), max_size=20))
    assert decode_in_steps(sentencepiece, ids) == oracle.decode(ids, skip_special_tokens=False)


@given(data=st.lists(st.binary(min_size=1, max_size=8) | st.text(max_size=2).map(str.encode), max_size=6))
def test_sentencepiece_byte_runs(folders: dict[str, Path], sentencepiece: Tokenizer, data: list[bytes]) -> None:
    """Each run: the library's text if it is valid or broken throughout, else its complete characters stay."""
    oracle = tokenizers.Tokenizer.from_file(str(folders["sentencepiece"] / "tokenizer.json"))
    separator = sentencepiece.token_id("hello") or sentencepiece.token_id("h")
    assert separator is not None
    ids = [separator]
    expected = oracle.decode([separator])
    for run in data:
        run_ids = [sentencepiece.token_id(f"<0x{byte:02X}>") for byte in run]
        run_text = run.decode(errors="one_replacement_per_byte")
        library_text = oracle.decode([separator, *run_ids])[len(oracle.decode([separator])) :]
        if not run_text.strip("\ufffd") or "\ufffd" not in run_text:
            assert run_text == library_text
        ids += [*run_ids, separator]
        expected += run_text + oracle.decode([separator])
    assert decode_in_steps(sentencepiece, ids) == expected


def test_sentencepiece_character_comes_with_its_last_byte(sentencepiece: Tokenizer) -> None:
    decoder = sentencepiece.new_decoder()
    ids = [sentencepiece.token_id(f"<0x{byte:02X}>") for byte in "🙂é".encode()]
    assert [decoder.add(token_id) for token_id in ids] == ["", "", "", "🙂", "", "é"]  # type: ignore[arg-type]


def test_kind_of_decoder_by_its_entry(all_tokenizers: dict[str, Tokenizer]) -> None:
    backend = text_models.sentencepiece()
    replace = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
    fallback, fuse = {"type": "ByteFallback"}, {"type": "Fuse"}
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}

    def kind(*steps: dict[str, object]) -> type:
        return type(token_spelling(backend, {"type": "Sequence", "decoders": list(steps)}, {}))

    assert kind({"type": "ByteLevel"}) is ByteLevelSpelling
    assert kind(replace, fallback, fuse) is SentencePieceSpelling
    assert kind(replace, fallback, fuse, strip) is SentencePieceSpelling
    assert kind(replace, fallback, fuse, strip | {"stop": 1}) is WindowSpelling
    assert kind(replace | {"pattern": {"Regex": "x"}}, fallback, fuse) is WindowSpelling
    assert kind(replace, fuse) is WindowSpelling
    assert kind() is WindowSpelling
    assert type(token_spelling(backend, None, {})) is WindowSpelling


class CountingBackend:
    """Says how many ids each decode had to look at. Every token is a piece of a character that never ends."""

    def __init__(self) -> None:
        self.window_sizes: list[int] = []

    def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
        self.window_sizes.append(len(ids))
        return "\ufffd" * len(ids)


@pytest.mark.parametrize("num_tokens", [10, 2_000])
def test_window_is_bounded_even_for_text_that_never_completes(num_tokens: int) -> None:
    backend = CountingBackend()
    decoder = WindowDecoder(backend, {7: "x"})  # type: ignore[arg-type]
    text = "".join(decoder.add(7) for _ in range(num_tokens)) + decoder.flush()
    assert text == "\ufffd" * num_tokens
    assert max(backend.window_sizes) <= WindowDecoder.NUM_CONTEXT + WindowDecoder.MAX_PENDING
    assert len(backend.window_sizes) <= 2 * num_tokens + 2
