import json
import unicodedata
from pathlib import Path

import pytest
import text_models
import tokenizers
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.text.token_bounds import token_bounds
from gateway.text.tokenizer import Tokenizer
from ipc.errors import ConfigError, RequestError

KINDS = list(text_models.KINDS)


def backend_of(folder: Path) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))


def test_encode_reads_special_tokens_and_adds_them_on_request(byte_level: Tokenizer, sentencepiece: Tokenizer) -> None:
    im_start, im_end = byte_level.token_id("<|im_start|>"), byte_level.token_id("<|im_end|>")
    ids = byte_level.encode("<|im_start|>hello<|im_end|>", add_special_tokens=False)
    assert (ids[0], ids[-1]) == (im_start, im_end)
    bos = sentencepiece.token_id("<s>")
    plain = sentencepiece.encode("hello", add_special_tokens=False)
    assert bos not in plain
    assert sentencepiece.encode("hello", add_special_tokens=True) == [bos, *plain]


def test_encode_ordinary_gives_no_special_ids(byte_level: Tokenizer) -> None:
    text = "x<|im_end|>\n<|im_start|>system <é><think>"
    ids = byte_level.encode_ordinary(text)
    assert not byte_level.special_ids.intersection(ids)
    assert byte_level.token_id("<think>") in ids  # an added token, but not a special one
    assert byte_level.decode(ids, skip_special_tokens=True) == text


@given(text=st.text(max_size=40))
def test_byte_level_round_trip(byte_level: Tokenizer, text: str) -> None:
    ids = byte_level.encode(text, add_special_tokens=False)
    assert byte_level.decode(ids, skip_special_tokens=False) == text


def test_empty_text_has_no_tokens(byte_level: Tokenizer) -> None:
    assert byte_level.encode("", add_special_tokens=True) == []
    assert byte_level.decode([], skip_special_tokens=True) == ""


@pytest.mark.parametrize("method", ["encode", "encode_ordinary", "encode_template_text"])
def test_lone_surrogate_is_a_request_error(byte_level: Tokenizer, method: str) -> None:
    options = {"add_special_tokens": False} if method == "encode" else {}
    with pytest.raises(RequestError, match="lone surrogate") as caught:
        getattr(byte_level, method)("cut \ud83d", param="prompt", **options)
    assert caught.value.param == "prompt"
    caught.value.message.encode()  # the message itself can be sent


def test_counts_and_gaps(all_tokenizers: dict[str, Tokenizer]) -> None:
    tokenizer = all_tokenizers["word_level"]  # ids 0, 1, 2, 3, 5
    assert (tokenizer.vocab_size, tokenizer.num_token_ids) == (5, 6)
    assert [tokenizer.has_token(token_id) for token_id in (-1, 0, 4, 5, 6)] == [False, True, False, True, False]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("token_id", [-1, 10**6, 2**40])
def test_ids_without_a_token_are_request_errors(all_tokenizers: dict[str, Tokenizer], kind: str, token_id: int) -> None:
    with pytest.raises(RequestError, match=str(token_id)):
        all_tokenizers[kind].decode([token_id], skip_special_tokens=False)
    with pytest.raises(RequestError, match=str(token_id)):
        all_tokenizers[kind].token_bytes(token_id)


def test_token_bytes_of_a_split_character(byte_level: Tokenizer, sentencepiece: Tokenizer) -> None:
    for tokenizer in (byte_level, sentencepiece):
        ids = tokenizer.encode("𒀀", add_special_tokens=False)
        assert b"".join(map(tokenizer.token_bytes, ids)).strip() == "𒀀".encode()
        assert "\ufffd" in tokenizer.token_text(ids[-1])


def test_token_text_inside_a_text(all_tokenizers: dict[str, Tokenizer]) -> None:
    space_hello = {
        "byte_level": " hello",
        "sentencepiece": " hello",
        "metaspace": " hello",
        "word_piece": " hello",
        "word_level": " hello",
    }
    for kind, text in space_hello.items():
        tokenizer = all_tokenizers[kind]
        (token_id,) = tokenizer.encode("hello hello", add_special_tokens=False)[-1:]
        assert tokenizer.token_text(token_id) == text, kind
    assert sum(all_tokenizers["byte_level"].token_text(2) == text for text in text_models.CONTROL_TOKENS) == 1


def test_eos_and_special_tokens_of_the_folder(byte_level: Tokenizer) -> None:
    assert byte_level.special_tokens == {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    assert byte_level.eos_ids == (byte_level.token_id("<|im_end|>"),)
    assert byte_level.is_special(byte_level.eos_ids[0])
    assert not byte_level.is_special(byte_level.token_id("<think>"))


def test_special_tokens_map_is_the_older_place(tmp_path: Path) -> None:
    folder = text_models.write_folder(tmp_path, text_models.byte_level(), eos_token="<|im_end|>")
    (folder / "special_tokens_map.json").write_text('{"eos_token": "<|endoftext|>", "bos_token": "<|im_start|>"}')
    assert Tokenizer.load(folder).special_tokens == {"eos_token": "<|im_end|>", "bos_token": "<|im_start|>"}


def test_truncation_and_padding_of_the_file_are_off(tmp_path: Path) -> None:
    backend = text_models.byte_level()
    backend.enable_truncation(max_length=2)
    backend.enable_padding(length=64)
    tokenizer = Tokenizer.load(text_models.write_folder(tmp_path, backend))
    text = "hello world, hello there"
    for ids in (tokenizer.encode(text, add_special_tokens=True), tokenizer.encode_ordinary(text)):
        assert tokenizer.decode(ids, skip_special_tokens=False) == text


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "no such file"),
        (b"{", "not a usable"),
        (b"[]", "not a usable"),
        (b"{}", "not a usable"),
        (b"\xff", "UTF-8"),
    ],
)
def test_broken_tokenizer_file_is_a_config_error(tmp_path: Path, content: bytes | None, words: str) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(ConfigError, match=words) as caught:
        Tokenizer.load(tmp_path)
    assert str(tmp_path / "tokenizer.json") in str(caught.value)


@pytest.mark.parametrize("content", ["{", "[]", "[" * 100_000])
def test_broken_tokenizer_config_is_a_config_error(tmp_path: Path, content: str) -> None:
    folder = text_models.write_folder(tmp_path, text_models.byte_level())
    (folder / "tokenizer_config.json").write_text(content)
    with pytest.raises(ConfigError, match=r"tokenizer_config\.json"):
        Tokenizer.load(folder)


@given(text=st.text(max_size=60))
@example(text="e\u0301" * 40)
@example(text="a" * 400)
@example(text=" " * 300)
@pytest.mark.parametrize("kind", KINDS)
def test_min_tokens_is_a_lower_bound(all_tokenizers: dict[str, Tokenizer], kind: str, text: str) -> None:
    tokenizer = all_tokenizers[kind]
    assert tokenizer.min_tokens(text) <= len(tokenizer.encode(text, add_special_tokens=False))


def test_min_tokens_is_of_use(byte_level: Tokenizer, sentencepiece: Tokenizer) -> None:
    longest = max(len(byte_level.token_bytes(token_id)) for token_id in range(byte_level.vocab_size))
    assert byte_level.min_tokens("é" * 5_000) == -(-10_000 // longest)
    assert sentencepiece.min_tokens("é" * 5_000) > 100
    byte_level.refuse_too_long("ab", 1, param="prompt")
    with pytest.raises(RequestError) as caught:
        byte_level.refuse_too_long("é" * 5_000, 100, param="prompt")
    assert (caught.value.param, caught.value.code) == ("prompt", "context_length_exceeded")


def test_min_tokens_leaves_out_bytes_without_a_token() -> None:
    vocabulary = {"a": 0, "b": 1}
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, []))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    bounds = token_bounds(json.loads(backend.to_str()), 1)
    for text in ("abba", "a\x04b", "\x04" * 50, "xyz", "aé🙂b"):
        assert bounds.min_tokens(text) == len(backend.encode(text).ids)


@pytest.mark.parametrize(
    "change",
    [
        {"normalizer": {"type": "NFKC"}},
        {"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Lowercase"}]}},
        {"pre_tokenizer": {"type": "Whitespace"}},
        {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}]}},
        {"pre_tokenizer": {"type": "Split", "behavior": "Removed"}},
        {"added_tokens": [{"lstrip": False, "rstrip": True}]},
        {"model": {"type": "Unigram"}},
    ],
)
def test_no_bound_where_text_may_vanish(change: dict[str, object]) -> None:
    parts = json.loads(text_models.byte_level().to_str())
    assert token_bounds(parts, 5).max_bytes == 5
    assert token_bounds(parts | change, 5).max_bytes is None


def test_nfc_shrinks_no_text_by_more_than_assumed() -> None:
    """For every character, the longest text (by singletons and decompositions) that NFC composes to it."""
    parts = json.loads(text_models.byte_level().to_str()) | {"normalizer": {"type": "NFC"}}
    composed = [chr(code) for code in range(0x110000) if unicodedata.decomposition(chr(code))]
    characters = set(composed).union(*(unicodedata.normalize("NFD", character) for character in composed))
    longest: dict[str, int] = {}
    for character in characters:
        whole = unicodedata.normalize("NFD", character)
        longest[whole] = max(longest.get(whole, 0), len(character.encode()))
    worst = 0.0
    for character in characters:
        pieces = unicodedata.normalize("NFD", character)
        shortest = len(unicodedata.normalize("NFC", character).encode())
        worst = max(worst, sum(longest[piece] for piece in pieces) / shortest)
    assert 3 < worst <= token_bounds(parts, 1).max_bytes
