"""The work for a piece does not grow with the text before it: counted in calls and in characters that are kept."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import pytest
from tool_call_parsing import new_parser

from gateway.tool_calls.incremental import IncrementalParser

NUM_CHARACTERS = 4_000
NUM_WINDOWS = 8

CASES = {
    "content": ("hermes", "", "a"),
    "white space": ("hermes", "", " "),
    "no tags": ("hermes", "", "<"),
    "half tags": ("hermes", "", "<tool_call"),
    "a string": ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "', "x"),
    "escapes": ("llama3_json", '{"name": "f", "parameters": {"a": "', "\\n"),
    "closing tags in a string": ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "', "</tool_call"),
    "depth": ("json", '[{"name": "f", "parameters": ', "["),
    "arguments before the name": ("json", '[{"parameters": [', "1,"),
    "an answer in JSON": ("llama3_json", '{"a": [', "{},"),
    "what is left of a call": ("hermes", '<tool_call>{"name": "f"}', "} "),
    "many calls": ("mistral", "", '[TOOL_CALLS]f{"a":1}'),
    "many objects": ("json", "[", '{"name":"f"},'),
    "a parameter": ("qwen", "<function=f><parameter=a>", "</parameter "),
    "many parameters": ("qwen", "<function=f>", "<parameter=a>1</parameter>"),
    "a Python string": ("pythonic", "[f(a='", "x"),
    "many Python calls": ("pythonic", "[", "f(a=1),"),
}


@contextmanager
def counted() -> Iterator[list[int]]:
    """Function calls, also of built-in ones, inside the block: as one number in a list."""
    num_calls = [0]

    def count(frame: FrameType, event: str, argument: object) -> None:
        num_calls[0] += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        yield num_calls
    finally:
        sys.setprofile(before)


def push_characters(parser: IncrementalParser, text: str) -> tuple[int, int]:
    """Pushes them one by one: (the calls that it took, the most characters kept unread)."""
    most_kept = 0
    with counted() as num_calls:
        for character in text:
            parser.push(character)
            most_kept = max(most_kept, len(parser.reader.text) - parser.reader.position)
    return num_calls[0], most_kept


@pytest.mark.parametrize("case", CASES)
def test_work_for_a_character_does_not_grow(case: str) -> None:
    name, begin, repeated = CASES[case]
    parser = new_parser(name)
    parser.push(begin)
    text = repeated * (NUM_CHARACTERS // len(repeated))
    size = len(text) // NUM_WINDOWS
    windows = [push_characters(parser, text[start : start + size]) for start in range(0, size * NUM_WINDOWS, size)]
    calls = [num_calls for num_calls, _ in windows]
    assert calls[-1] <= 1.1 * calls[1]
    assert max(calls) <= 60 * size
    assert max(kept for _, kept in windows) < len("[TOOL_CALLS]")


@pytest.mark.parametrize("case", CASES)
def test_work_for_a_whole_text_is_linear(case: str) -> None:
    name, begin, repeated = CASES[case]
    calls = []
    for num_repeated in (500, 1000):
        parser = new_parser(name)
        with counted() as num_calls:
            parser.push(begin + repeated * num_repeated)
            parser.finish()
        calls += num_calls
    assert calls[1] <= 2.1 * calls[0]
