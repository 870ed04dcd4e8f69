"""What every parser of the registry promises."""

import inspect
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tool_call_parsing import CLASSES, NAMES, Parsed, check, new_parser, parse, tool

from gateway.tool_calls.parser import ToolCallFormat

FRAGMENTS = [
    *("<tool_call>", "</tool_call>", "<tool_call", "<tool", "tool_call>"),
    *("<function=", "<function=f>", "<parameter=a>", "</parameter>", "</function>", ">"),
    *("[TOOL_CALLS]", "[TOOL_CALLS] [", "[ARGS]", "[CALL_ID]", "[TOOL", "<|python_tag|>", "<|py"),
    *('{"name": "f"', '"name"', '"arguments"', '"parameters": {', '{"a": 1}', '{"a": "}"', '\\"', "\\u00fc", "\\"),
    *("{", "}", "[", "]", ",", ":", ";", '"', "'", "(", ")", "=", "f(", "[f(a=1)", "[f(a='", "1", "-2.5e3", "true"),
    *(" ", "\n", "\t", "\r\n", "\x00", "\u2028", "\ud800", "ü", "🙂", "Münster", "f", "hello "),
]
texts = st.lists(st.one_of(st.sampled_from(FRAGMENTS), st.text(max_size=3)), max_size=25).map("".join)
names = st.from_regex(r"[a-z][a-z_0-9]{0,12}", fullmatch=True)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
arguments = st.builds(
    lambda value, indent, is_ascii: json.dumps(value, indent=indent, ensure_ascii=is_ascii),
    st.dictionaries(st.text(max_size=8), values, max_size=4),
    st.sampled_from([None, 2]),
    st.booleans(),
)
FORMATS = [name for name in NAMES if CLASSES[name].format]


def cut(text: str, places: list[int]) -> list[str]:
    ends = sorted(place % (len(text) + 1) for place in places)
    return [text[start:end] for start, end in zip([0, *ends], [*ends, len(text)], strict=True)]


@pytest.mark.parametrize("name", NAMES)
def test_a_parser_says_what_it_needs(name: str) -> None:
    parser_class = CLASSES[name]
    assert isinstance(parser_class.needs_special_tokens, bool)
    assert parser_class.format is None or isinstance(parser_class.format, ToolCallFormat)
    assert inspect.getdoc(parser_class)
    assert parse(name, []) == Parsed()


@pytest.mark.parametrize("name", NAMES)
@settings(derandomize=True, deadline=None, max_examples=150)
@given(text=texts, places=st.lists(st.integers(0, 10_000), max_size=6), has_tools=st.booleans())
def test_any_text_comes_to_the_same_however_it_is_cut(name: str, text: str, places: list[int], has_tools: bool) -> None:
    tools = [tool("f", a={"type": "integer"})] if has_tools else []
    whole = parse(name, [text], tools)
    assert parse(name, cut(text, places), tools) == whole
    assert parse(name, list(text), tools) == whole


HOSTILE = {
    "open signs": "[f(a=" + "-" * 100_000,
    "open brackets": "[f(" * 20_000,
    "open arrays": '[{"name": "f", "parameters": ' + "[" * 100_000,
    "nested brackets": "[f(a=" + "(" * 5_000 + ")" * 5_001 + "]",
    "nested signs": "[f(a=" + "-" * 50_000 + "1)]",
    "nested sums": "[f(a=" + "1+" * 20_000 + "1)]",
    "nested arrays": "<function=f><parameter=a>" + "[" * 50_000 + "</parameter>",
    "digits": "[f(a=" + "9" * 5_000 + ")]",
    "what Python warns of": '[f(a="\\d\\400", b="\\ud83d", c=1if 2else 3)]',
    "a name that UTF-8 cannot spell": '{"name": "\\ud800", "parameters": {}}',
}


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("name", NAMES)
def test_no_text_is_too_much(name: str, text: str) -> None:
    hostile, tools = HOSTILE[text], [tool("f", a={"type": "integer"})]
    assert parse(name, [hostile], tools) == parse(name, cut(hostile, list(range(0, len(hostile), 997))), tools)


@pytest.mark.parametrize("name", NAMES)
@settings(derandomize=True, deadline=None, max_examples=50)
@given(text=st.text(st.characters(exclude_characters="<[{")))
def test_text_in_which_nothing_can_begin_is_sent_as_it_comes(name: str, text: str) -> None:
    parser = new_parser(name)
    inked = text.rstrip(" \t\r\n")
    assert parser.push(text).content == inked
    assert parser.finish().content == text[len(inked) :]


@pytest.mark.parametrize("name", NAMES)
def test_parsers_do_not_share_anything(name: str) -> None:
    first, second = new_parser(name), new_parser(name)
    first.push('<tool_call>{"name": "f"')
    assert second.push("hello").content == "hello"


@pytest.mark.parametrize("name", FORMATS)
@settings(derandomize=True, deadline=None, max_examples=50)
@given(calls=st.lists(st.tuples(names, arguments), min_size=1, max_size=3), places=st.lists(st.integers(0), max_size=4))
def test_a_format_is_what_its_parser_reads(name: str, calls: list[tuple[str, str]], places: list[int]) -> None:
    text = spelled(CLASSES[name].format, calls)
    tools = [tool(called) for called, _ in calls]
    assert parse(name, cut(text, places), tools) == Parsed("", calls)


def spelled(form: ToolCallFormat, calls: list[tuple[str, str]]) -> str:
    objects = (f'{{"{form.name_key}": "{name}", "{form.arguments_key}": {given}}}' for name, given in calls)
    return form.begin + form.separator.join(f"{form.call_begin}{o}{form.call_end}" for o in objects) + form.end


ARGUMENTS = [
    "{}",
    '{"city": "Münster 🙂"}',
    '{"city": "M\\u00fcnster \\ud83d\\ude42"}',
    '{"a": {"b": {"c": [{}, [], {"d": null}]}}, "e": -1.5e3}',
    '{"text": "}]\\"}{ \\\\"}',
    '{"text": "</tool_call> <tool_call> [TOOL_CALLS]; , ] <|python_tag|>"}',
    '{ "a" :\t[ 1 , true ] \n}',
    '{"wrong": "it\\\'s", "two\nlines": True, "comma": 1,}',
]


@pytest.mark.parametrize("given_arguments", ARGUMENTS)
@pytest.mark.parametrize("name", FORMATS)
def test_arguments_are_sent_as_they_were_written(name: str, given_arguments: str) -> None:
    calls = [("f", given_arguments)]
    check(name, spelled(CLASSES[name].format, calls), "", calls)


@pytest.mark.parametrize("name", FORMATS)
def test_two_calls_are_two_indices(name: str) -> None:
    calls = [("f", '{"a": 1}'), ("f", "{}")]
    check(name, spelled(CLASSES[name].format, calls), "", calls)


@pytest.mark.parametrize(
    ("written", "calls"),
    [
        ('{"parameters": {"a": "x"}, "name": "f"}', [("f", '{"a": "x"}')]),
        ('{"type": "function", "name": "f", "id": 7, "arguments": {}}', [("f", "{}")]),
        ('{"name": "f"}', [("f", "{}")]),
        ('{"name": "f", "arguments": {"a": 1}, "arguments": {"a": 2}, "name": "g"}', [("f", '{"a": 1}')]),
        ('{"n\\u0061me": "\\u0066", "arguments": {}}', [("f", "{}")]),
    ],
)
@pytest.mark.parametrize("name", FORMATS)
def test_objects_are_read_by_their_keys(name: str, written: str, calls: list[tuple[str, str]]) -> None:
    form = CLASSES[name].format
    check(name, form.begin + form.call_begin + written + form.call_end + form.end, "", calls)


@pytest.mark.parametrize("written", ["{}", '{"name": ""}', '{"name": 5}', '{"arguments": {}}', "{f}", '{"name" "f"}'])
@pytest.mark.parametrize("name", FORMATS)
def test_an_object_that_is_no_call_is_content(name: str, written: str) -> None:
    form = CLASSES[name].format
    text = form.begin + form.call_begin + written + form.call_end + form.end
    check(name, text, text, [])


@pytest.mark.parametrize("name", FORMATS)
def test_arguments_stream(name: str) -> None:
    """Each character of the arguments is sent when it comes."""
    form = CLASSES[name].format
    parser, written = new_parser(name), '{"city": "Köln", "days": [1, 2]}'
    (first,) = parser.push(f'{form.begin}{form.call_begin}{{"{form.name_key}": "f"').tool_calls
    assert (first.index, first.name, first.arguments) == (0, "f", "")
    assert parser.push(f', "{form.arguments_key}": ').tool_calls == []
    for character in written:
        (delta,) = parser.push(character).tool_calls
        assert (delta.index, delta.name, delta.arguments) == (0, None, character)
    assert parser.push("}").tool_calls == []


@pytest.mark.parametrize("name", FORMATS)
def test_a_call_that_breaks_off_keeps_what_was_sent(name: str) -> None:
    form = CLASSES[name].format
    begun = f'{form.begin}{form.call_begin}{{"{form.name_key}": "f"'
    check(name, begun, "", [("f", "")])
    check(name, f'{begun}, "{form.arguments_key}": {{"a": "x', "", [("f", '{"a": "x')])
    nameless = f'{form.begin}{form.call_begin}{{"{form.name_key}": "f'
    check(name, nameless, nameless, [])


def test_the_keys_of_untagged_objects_need_a_tool_of_the_request() -> None:
    answer: Any = '{"name": "Ada", "parameters": {}}'
    for name in ("llama3_json", "json"):
        form = CLASSES[name].format
        text = form.begin + answer + form.end
        check(name, text, text, [], [tool("f")])
        check(name, text, "", [("Ada", "{}")], [tool("Ada")])
