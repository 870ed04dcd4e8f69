"""Every reasoning parser of the registry, on texts that are cut in every way."""

import inspect
import sys
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway import registry
from gateway.reasoning.parser import ReasoningParser

KIND = "reasoning_parsers"
NAMES = registry.names(KIND)
CLASSES = {name: registry.load(KIND, name) for name in NAMES}


class Parsed(NamedTuple):
    """All of a response; ``is_open`` and ``end_offset`` as they are before the text is known to be over."""

    reasoning: str
    content: str
    end_offset: int | None = None
    is_open: bool = False


def new_parser(name: str, starts_open: bool = False) -> ReasoningParser:
    parser: ReasoningParser = CLASSES[name](starts_open=starts_open)
    return parser


def parse(name: str, pieces: Iterable[str], starts_open: bool = False) -> Parsed:
    parser = new_parser(name, starts_open)
    deltas = [parser.push(piece) for piece in pieces]
    end_offset, is_open = parser.end_offset, parser.is_open
    deltas.append(parser.finish())
    assert (parser.end_offset, parser.is_open) == (end_offset, is_open)
    reasoning, content = ("".join(getattr(delta, part) for delta in deltas) for part in ("reasoning", "content"))
    return Parsed(reasoning, content, end_offset, is_open)


def ways_to_cut(text: str) -> Iterator[list[str]]:
    yield [text]
    yield list(text)
    for index in range(len(text) + 1):
        yield [text[:index], text[index:]]


THINK = [
    ("", False, Parsed("", "")),
    ("Hello.\n", False, Parsed("", "Hello.\n")),
    ("  Hello.", False, Parsed("", "  Hello.")),
    ("<think>hm</think>Hi", False, Parsed("hm", "Hi", 17)),
    ("\n<think>\nhm\n\nMünster 🙂\n</think>\n\nHi\n", False, Parsed("hm\n\nMünster 🙂", "Hi\n", 31)),
    ("<think>\n\n</think>\n\nHi", False, Parsed("", "Hi", 17)),
    ("<think></think>", False, Parsed("", "", 15)),
    ("<think>hm</think> \n", False, Parsed("hm", "", 17)),
    # Pieces of tags, and tags in other places.
    ("<thi", False, Parsed("", "<thi")),
    (" <thin king", False, Parsed("", " <thin king")),
    ("<<think>hm", False, Parsed("", "<<think>hm")),
    ("Write <think>x</think>.", False, Parsed("", "Write <think>x</think>.")),
    ("hm</think>Hi", False, Parsed("", "hm</think>Hi")),
    (
        "<think>a </thin </<think> b</think>c</think><think>",
        False,
        Parsed("a </thin </<think> b", "c</think><think>", 35),
    ),
    # Broken off: all of it is reasoning.
    ("<think>", False, Parsed("", "", None, True)),
    ("<think>\nhm \n", False, Parsed("hm \n", "", None, True)),
    ("<think>hm\n</thi", False, Parsed("hm\n</thi", "", None, True)),
    # The prompt opened it.
    ("", True, Parsed("", "", None, True)),
    ("\nhm\n</think>\n\nHi", True, Parsed("hm", "Hi", 12)),
    ("</think>Hi", True, Parsed("", "Hi", 8)),
    ("<think>\nhm</think>Hi", True, Parsed("hm", "Hi", 18)),
    (" <thi", True, Parsed("<thi", "", None, True)),
]


@pytest.mark.parametrize(("text", "starts_open", "parsed"), THINK)
@pytest.mark.parametrize("name", ["think", "qwen3"])
def test_think(name: str, text: str, starts_open: bool, parsed: Parsed) -> None:
    for pieces in ways_to_cut(text):
        assert parse(name, pieces, starts_open) == parsed, pieces


@pytest.mark.parametrize("starts_open", [False, True])
@pytest.mark.parametrize(("text", "parsed"), [(text, parsed) for text, starts_open, parsed in THINK if starts_open])
def test_deepseek_r1_is_open_from_the_start(text: str, starts_open: bool, parsed: Parsed) -> None:
    for pieces in ways_to_cut(text):
        assert parse("deepseek_r1", pieces, starts_open) == parsed, pieces


@pytest.mark.parametrize(
    ("name", "text", "parsed"),
    [
        ("granite", "Here is my thought process:\nhm\nHere is my response:\nHi", Parsed("hm", "Hi", 51)),
        ("granite", "Here's my thought process: Here is Here's my response: Hi", Parsed("Here is", "Hi", 54)),
        ("granite", "Here is my thought.", Parsed("", "Here is my thought.")),
        ("magistral", "[THINK]hm[/THINK]Hi", Parsed("hm", "Hi", 17)),
        ("magistral", "[THINK]a [/INST] [", Parsed("a [/INST] [", "", None, True)),
    ],
)
def test_other_tags(name: str, text: str, parsed: Parsed) -> None:
    for pieces in ways_to_cut(text):
        assert parse(name, pieces) == parsed, pieces


def test_text_is_sent_when_it_is_certain() -> None:
    parser = new_parser("think")
    assert not parser.is_open
    assert parser.push("\n<think").reasoning == ""
    assert not parser.is_open
    assert parser.push(">\nhm ").reasoning == "hm"
    assert parser.is_open
    assert parser.push("</").reasoning == ""
    assert parser.push("x").reasoning == " </x"
    assert parser.push("</think").reasoning == ""
    assert parser.end_offset is None
    delta = parser.push(">\nHi")
    assert (delta.reasoning, delta.content) == ("", "Hi")
    assert (parser.end_offset, parser.is_open) == (len("\n<think>\nhm </x</think>"), False)
    assert parser.push(" there ").content == " there "


@pytest.mark.parametrize("name", NAMES)
def test_a_parser_says_what_it_needs(name: str) -> None:
    parser_class = CLASSES[name]
    assert parser_class.needs_special_tokens is (name == "magistral")
    assert inspect.getdoc(parser_class)
    opening = parser_class.opening_tags[0]
    assert parser_class.opens_in_prompt(f"Hi\n{opening}\n")
    assert parser_class.opens_in_prompt(opening)
    for prompt in ("", "\n", "Hi", f"{opening} no", f"{opening}\n\n{parser_class.closing_tags[0]}\n\n", opening[:-1]):
        assert not parser_class.opens_in_prompt(prompt)


FRAGMENTS = [
    *("<think>", "</think>", "<thi", "</think", "nk>", "[THINK]", "[/THINK]", "[/TH", "INK]"),
    *("Here is my thought process:", "Here's my response:", "Here is my ", "response:", "Here"),
    *(" ", "\n", "\r\n\t", "\x0b", "\u2028", "a", "🙂", "<", "/"),
]
texts = st.lists(st.one_of(st.sampled_from(FRAGMENTS), st.text(max_size=3)), max_size=15).map("".join)


@pytest.mark.parametrize("name", NAMES)
@settings(derandomize=True, deadline=None, max_examples=150)
@given(text=texts, places=st.lists(st.integers(0, 1_000), max_size=6), starts_open=st.booleans())
@example(text="<think>" + " " * 50 + "</think>", places=[9, 30], starts_open=False)
def test_any_text_comes_to_the_same_however_it_is_cut(
    name: str, text: str, places: list[int], starts_open: bool
) -> None:
    ends = sorted(place % (len(text) + 1) for place in places)
    pieces = [text[start:end] for start, end in zip([0, *ends], [*ends, len(text)], strict=True)]
    whole = parse(name, [text], starts_open)
    assert parse(name, pieces, starts_open) == whole
    assert parse(name, list(text), starts_open) == whole
    if whole.end_offset is None:
        assert not whole.reasoning or whole.is_open
        assert whole.is_open or whole.content == text
    else:
        closing = CLASSES[name].closing_tags
        assert text[: whole.end_offset].endswith(closing)
        assert whole.content == text[whole.end_offset :].lstrip(" \t\r\n")


@pytest.mark.parametrize("repeated", ["x", " ", "<", "</think", "\n</"])
@pytest.mark.parametrize("name", ["think", "granite"])
def test_work_for_a_character_does_not_grow(name: str, repeated: str) -> None:
    parser = new_parser(name, starts_open=True)
    text = repeated * (4_000 // len(repeated))
    num_calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal num_calls
        num_calls += event in ("call", "c_call")

    windows = []
    before = sys.getprofile()
    sys.setprofile(count)
    try:
        for index, character in enumerate(text, start=1):
            parser.push(character)
            if index % (len(text) // 8) == 0:
                windows.append(num_calls)
    finally:
        sys.setprofile(before)
    work = [after - before for before, after in zip(windows, windows[1:], strict=False)]
    assert work[-1] <= 1.1 * work[0]
    assert max(work) <= 60 * len(text) // 8
