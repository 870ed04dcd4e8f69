import pytest

from gateway.text.bad_words import MAX_NUM_TOKENS, MAX_NUM_WORDS, encode_bad_words
from gateway.text.tokenizer import Tokenizer
from ipc.errors import RequestError


def test_words_are_banned_with_and_without_a_space(byte_level: Tokenizer) -> None:
    sequences = encode_bad_words(["hello", "  hello", "stop", "hello"], byte_level)
    texts = [byte_level.decode(sequence, skip_special_tokens=False) for sequence in sequences]
    assert texts == ["hello", " hello", "stop", " stop"]
    assert len(set(sequences)) == len(sequences)
    for text, sequence in zip(texts, sequences, strict=True):
        assert list(sequence) == byte_level.encode(text, add_special_tokens=True)


def test_no_bos_and_special_tokens_can_be_banned(sentencepiece: Tokenizer) -> None:
    bos, eos = sentencepiece.token_id("<s>"), sentencepiece.token_id("</s>")
    assert all(bos not in sequence for sequence in encode_bad_words(["hello"], sentencepiece))
    assert (eos,) in encode_bad_words(["</s>"], sentencepiece)


def test_white_space_is_a_word(byte_level: Tokenizer) -> None:
    texts = [byte_level.decode(ids, skip_special_tokens=False) for ids in encode_bad_words(["\n"], byte_level)]
    assert texts == ["\n", " \n"]


@pytest.mark.parametrize(
    "words",
    [
        [""],
        ["a", ""],
        ["cut \ud83d"],
        ["a"] * (MAX_NUM_WORDS + 1),
        [f"{index}" * 20 for index in range(MAX_NUM_WORDS)],
        ["x" * 100 * MAX_NUM_TOKENS],
    ],
)
def test_senseless_words_are_request_errors(byte_level: Tokenizer, words: list[str]) -> None:
    with pytest.raises(RequestError) as caught:
        encode_bad_words(words, byte_level)
    assert caught.value.param == "bad_words"
    assert len(caught.value.message) < 200


def test_no_words(byte_level: Tokenizer) -> None:
    assert encode_bad_words([], byte_level) == ()
