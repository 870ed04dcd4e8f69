"""Where a JSON value ends, against the json module."""

import json
import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.tool_calls.json_value import JsonValue

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


def read(text: str, size: int) -> tuple[int, bool, bool]:
    """Reads pieces of ``size``: (characters that belong to the value, has_ended, is_malformed)."""
    value, read_so_far = JsonValue(), 0
    for start in range(0, len(text), size):
        piece = text[start : start + size]
        end = value.advance(piece, 0)
        read_so_far += end
        if end < len(piece) or value.has_ended:
            break
    return read_so_far, value.has_ended, value.is_malformed


@settings(derandomize=True, deadline=None)
@given(
    value=values,
    indent=st.sampled_from([None, 1]),
    is_ascii=st.booleans(),
    after=st.sampled_from([",", "}", "]", " x", '"', "<", "{"]),
    size=st.integers(1, 9),
)
def test_a_value_ends_where_it_ends(value: object, indent: int | None, is_ascii: bool, after: str, size: int) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=is_ascii)
    assert read(text + after, size) == (len(text), True, False)


@settings(derandomize=True, deadline=None, max_examples=500)
@given(text=st.text(alphabet='{}[],:"1 ', max_size=12).map(lambda inner: "[" + inner))
@example(text='["1":1]')
@example(text='[{"1":1,}]')
@example(text="[,]")
@example(text="[1 1]")
def test_only_json_is_a_value(text: str) -> None:
    """With a comma before a closing bracket, as the one thing more."""
    results = {read(text, size) for size in (1, 2, 3, len(text))}
    assert len(results) == 1
    ((end, has_ended, is_malformed),) = results
    strict = without_last_commas(text)
    try:
        json.JSONDecoder().raw_decode(strict)
        is_json = True
    except ValueError:
        is_json = False
    assert has_ended == is_json
    if has_ended:
        assert isinstance(json.loads(without_last_commas(text[:end])), list)
        assert not is_malformed


def without_last_commas(text: str) -> str:
    """Blanks them, outside of strings; but not a comma that no value stands before."""
    string = r'"(?:[^"\\]|\\.)*"'
    return re.sub(rf'({string})|(?<=[1"}}\]])( *),(?= *[}}\]])', last_comma, text)


def last_comma(match: re.Match[str]) -> str:
    return match.group(1) or f"{match.group(2)} "


@pytest.mark.parametrize(
    "text", ["}", "]", ",", ":", "<x", "'a'", "{1", '{"a"}', '{"a" 1', "[}", '{"a": ]', "[1:", "{,"]
)
def test_what_json_cannot_be_is_malformed(text: str) -> None:
    assert read(text, 1)[1:] == (False, True)
    assert read(text, len(text)) == read(text, 1)
