import codecs
from pathlib import Path

import pytest
import text_models
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from gateway.text.detokenizer import IncrementalDetokenizer
from gateway.text.stop_strings import StopMatch
from gateway.text.tokenizer import Tokenizer
from ipc.errors import EngineError, RequestError


def splits(ids: list[int]) -> st.SearchStrategy[list[list[int]]]:
    """All ways to push ``ids``, empty pushes among them."""
    return st.lists(st.integers(0, len(ids)), max_size=6).map(
        lambda cuts: [ids[a:b] for a, b in zip([0, *sorted(cuts)], [*sorted(cuts), len(ids)], strict=True)]
    )


def run(detokenizer: IncrementalDetokenizer, pushes: list[list[int]]) -> list[str]:
    return [*map(detokenizer.push, pushes), detokenizer.finish()]


EXACT_KINDS = [kind for kind in text_models.KINDS if kind != "sentencepiece"]


@pytest.mark.parametrize("kind", EXACT_KINDS)
@pytest.mark.parametrize("skip_special_tokens", [False, True])
@given(data=st.data())
def test_any_split_gives_the_decoding_of_the_whole(
    folders: dict[str, Path],
    all_tokenizers: dict[str, Tokenizer],
    kind: str,
    skip_special_tokens: bool,
    data: st.DataObject,
) -> None:
    tokenizer = all_tokenizers[kind]
    valid = [token_id for token_id in range(tokenizer.num_token_ids) if tokenizer.has_token(token_id)]
    ids = data.draw(
        st.lists(st.sampled_from(valid) | st.sampled_from(sorted(tokenizer.special_ids or {0})), max_size=25)
    )
    oracle = tokenizers.Tokenizer.from_file(str(folders[kind] / "tokenizer.json"))
    detokenizer = IncrementalDetokenizer(tokenizer, skip_special_tokens=skip_special_tokens)
    parts = run(detokenizer, data.draw(splits(ids)))
    assert "".join(parts) == oracle.decode(ids, skip_special_tokens=skip_special_tokens) == detokenizer.text
    assert (detokenizer.num_tokens, detokenizer.stop_match) == (len(ids), None)


@given(text=st.text(max_size=25), data=st.data())
def test_no_part_holds_half_a_character(
    byte_level: Tokenizer, sentencepiece: Tokenizer, text: str, data: st.DataObject
) -> None:
    for tokenizer in (byte_level, sentencepiece):
        ids = tokenizer.encode(text.replace("\ufffd", ""), add_special_tokens=False)
        detokenizer = IncrementalDetokenizer(tokenizer, skip_special_tokens=False)
        parts = run(detokenizer, [[token_id] for token_id in ids])
        assert "\ufffd" not in "".join(parts)
        assert "".join(parts) == tokenizer.decode(ids, skip_special_tokens=False)
        assert parts[-1] == ""  # nothing was held without need


def test_incomplete_characters_are_flushed(byte_level: Tokenizer) -> None:
    first_byte, second_byte = (byte_level.token_id(character) for character in ("ð", "Ł"))  # F0 9F
    for num_repeats in (1, 6):
        detokenizer = IncrementalDetokenizer(byte_level)
        parts = run(detokenizer, [[first_byte, second_byte]] * num_repeats)  # type: ignore[list-item]
        assert parts == ["", *["\ufffd"] * num_repeats][: num_repeats + 1]
        assert detokenizer.num_tokens == 2 * num_repeats


def certain_lengths(tokenizer: Tokenizer, ids: list[int]) -> list[int]:
    """How many characters are certain after each token, by Python's own UTF-8 decoder over all bytes so far."""
    lengths = []
    for end in range(1, len(ids) + 1):
        data = b"".join(map(tokenizer.token_bytes, ids[:end]))
        lengths.append(len(codecs.getincrementaldecoder("utf-8")("replace").decode(data)))
    return lengths


def expected_stop(
    text: str, stops: list[str], lengths: list[int], include: bool, min_tokens: int
) -> tuple[str, StopMatch | None]:
    """By definition: the first end of a stop string in a token after the first ``min_tokens``; the longest there."""
    for end in range(1, len(text) + 1):
        num_tokens = next((index + 1 for index, length in enumerate(lengths) if length >= end), len(lengths))
        matches = [stop for stop in stops if text[:end].endswith(stop)]
        if matches and num_tokens > min_tokens:
            stop = max(matches, key=len)
            return text[: end if include else end - len(stop)], StopMatch(stop, num_tokens)
    return text, None


@given(data=st.data(), include=st.booleans(), min_tokens=st.integers(0, 4))
def test_stop_strings_for_any_tokens_and_any_split(
    byte_level: Tokenizer, data: st.DataObject, include: bool, min_tokens: int
) -> None:
    few_ids = byte_level.encode("aaaa abab abba 🙂🌶 stop stopping", add_special_tokens=False)
    ids = data.draw(st.lists(st.sampled_from(sorted(set(few_ids))), max_size=20))
    text = byte_level.decode(ids, skip_special_tokens=True)
    inside = st.tuples(st.integers(0, len(text)), st.integers(1, 8)).map(lambda cut: text[cut[0] : sum(cut)])
    stops = data.draw(st.lists((inside | st.text(alphabet="ab st", max_size=4)).filter(bool), min_size=1, max_size=4))
    expected, match = expected_stop(text, stops, certain_lengths(byte_level, ids), include, min_tokens)

    detokenizer = IncrementalDetokenizer(
        byte_level, stop=tuple(stops), include_stop_str_in_output=include, min_tokens=min_tokens
    )
    sent = ""
    for push in data.draw(splits(ids)):
        sent += detokenizer.push(push)
        assert expected.startswith(sent)  # nothing is sent that would have to be taken back
    sent += detokenizer.finish()
    assert (sent, detokenizer.text, detokenizer.stop_match) == (expected, expected, match)
    assert detokenizer.num_tokens == (match.num_tokens if match else len(ids))


@pytest.mark.parametrize("kind", list(text_models.KINDS))
@given(data=st.data())
def test_stop_strings_do_not_depend_on_the_split(
    all_tokenizers: dict[str, Tokenizer], kind: str, data: st.DataObject
) -> None:
    tokenizer = all_tokenizers[kind]
    ids = tokenizer.encode(data.draw(st.sampled_from(text_models.CORPUS)), add_special_tokens=False)
    text = tokenizer.decode(ids, skip_special_tokens=True)
    start = data.draw(st.integers(0, len(text) - 1))
    stop = text[start : start + data.draw(st.integers(1, 12))]
    at_once = IncrementalDetokenizer(tokenizer, stop=(stop,))
    in_parts = IncrementalDetokenizer(tokenizer, stop=(stop,))
    assert "".join(run(at_once, [ids])) == "".join(run(in_parts, data.draw(splits(ids)))) == text[: text.find(stop)]
    assert at_once.stop_match == in_parts.stop_match
    assert at_once.stop_match is not None


def test_stop_across_tokens_and_inside_one(byte_level: Tokenizer) -> None:
    ids = byte_level.encode("hello there stopping", add_special_tokens=False)
    pieces = [byte_level.token_text(token_id) for token_id in ids]
    across = pieces[1][-1] + pieces[2][:1]
    for stop in (across, pieces[0][1:3], "zzz"):
        detokenizer = IncrementalDetokenizer(byte_level, stop=(stop, "never"))
        parts = run(detokenizer, [[token_id] for token_id in ids])
        assert "".join(parts) == "hello there stopping".split(stop)[0]


def test_only_a_possible_beginning_is_held_back(byte_level: Tokenizer) -> None:
    detokenizer = IncrementalDetokenizer(byte_level, stop=("STOP here and now",))
    assert detokenizer.push(byte_level.encode("hello ST", add_special_tokens=False)) == "hello "
    assert detokenizer.push(byte_level.encode("OP it", add_special_tokens=False)) == "STOP it"
    assert detokenizer.push(byte_level.encode(" ST", add_special_tokens=False)) == " "
    assert detokenizer.finish() == "ST"
    assert detokenizer.finish() == ""
    assert detokenizer.text == "hello STOP it ST"


def test_tokens_after_the_stop_are_ignored(byte_level: Tokenizer) -> None:
    ids = byte_level.encode("hello world", add_special_tokens=False)
    detokenizer = IncrementalDetokenizer(byte_level, stop=("hel",))
    assert detokenizer.push(ids) == ""
    assert detokenizer.stop_match is not None
    num_tokens = detokenizer.num_tokens
    assert detokenizer.push(ids) == ""
    assert (detokenizer.num_tokens, len(detokenizer.token_offsets)) == (num_tokens, num_tokens)
    assert detokenizer.finish() == ""


def test_flushed_text_can_complete_a_stop_string(byte_level: Tokenizer) -> None:
    first_byte = byte_level.token_id("ð")
    detokenizer = IncrementalDetokenizer(byte_level, stop=("\ufffd",))
    assert detokenizer.push([first_byte]) == ""  # type: ignore[list-item]
    assert detokenizer.stop_match is None
    assert detokenizer.finish() == ""
    assert detokenizer.stop_match == StopMatch("\ufffd", 1)


def test_skipped_special_tokens_are_no_text(byte_level: Tokenizer) -> None:
    ids = byte_level.encode("a<|im_end|>b", add_special_tokens=False)
    assert "".join(run(IncrementalDetokenizer(byte_level, stop=("<|im_end|>",)), [ids])) == "ab"
    shown = IncrementalDetokenizer(byte_level, stop=("<|im_end|>",), skip_special_tokens=False)
    assert "".join(run(shown, [ids])) == "a"


def test_token_offsets(byte_level: Tokenizer, sentencepiece: Tokenizer) -> None:
    for tokenizer in (byte_level, sentencepiece):
        ids = tokenizer.encode("hello 𒀀x stop", add_special_tokens=False)
        detokenizer = IncrementalDetokenizer(tokenizer)
        text = "".join(run(detokenizer, [ids]))
        assert text == "hello 𒀀x stop"
        offsets = list(detokenizer.token_offsets)
        assert len(offsets) == len(ids)
        for index, token_id in enumerate(ids):
            piece = tokenizer.token_text(token_id)
            if "\ufffd" in piece:
                assert offsets[index] <= text.index("𒀀")
            elif index:
                assert text[offsets[index] :].startswith(piece)
        assert offsets[0] == 0


def test_unknown_id_fails_this_request(all_tokenizers: dict[str, Tokenizer]) -> None:
    for tokenizer in all_tokenizers.values():
        with pytest.raises(EngineError, match=str(tokenizer.num_token_ids)):
            IncrementalDetokenizer(tokenizer).push([tokenizer.num_token_ids])


def test_empty_stop_string_is_refused(byte_level: Tokenizer) -> None:
    with pytest.raises(RequestError) as caught:
        IncrementalDetokenizer(byte_level, stop=("a", ""))
    assert caught.value.param == "stop"


def test_state_stays_small(byte_level: Tokenizer) -> None:
    """What is held and looked at again is bounded by the longest stop string, however long the output."""
    a, broken = byte_level.token_id("a"), byte_level.token_id("ð")
    stop = "a" * 499 + "b"
    detokenizer = IncrementalDetokenizer(byte_level, stop=(stop,))
    for token_id in [a] * 3_000 + [broken] * 3_000:
        detokenizer.push([token_id])  # type: ignore[list-item]
        assert len(detokenizer._held) < len(stop)
    assert len(detokenizer.text + detokenizer.finish()) == 6_000
