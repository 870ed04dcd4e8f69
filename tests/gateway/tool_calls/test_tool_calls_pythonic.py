import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tool_call_parsing import check, new_parser, tool

from gateway.tool_calls.python_arguments import arguments_json

CALL_F, CALL_G = ("f", '{"a": 1}'), ("g", "{}")


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ("[f(a=1)]", "", [CALL_F]),
        (" [f(a=1), g()]\n", "", [CALL_F, CALL_G]),
        ("[ f(a=1) ,\n g() , ]", "", [CALL_F, CALL_G]),
        ("[ns.get-it(a=1)]", "", [("ns.get-it", '{"a": 1}')]),
        ('[f(a="x)]", b=\'"\', c="\\")")]', "", [("f", '{"a": "x)]", "b": "\\"", "c": "\\")"}')]),
        (
            "[f(a={'b': [1, (2, -3.5)]}, c=None, d=True)]",
            "",
            [("f", '{"a": {"b": [1, [2, -3.5]]}, "c": null, "d": true}')],
        ),
        ('[f(a="Münster 🙂")]', "", [("f", '{"a": "Münster 🙂"}')]),
        ("[f(a=1)] Done.", "Done.", [CALL_F]),
        ("[f(a=1)", "", [CALL_F]),
        ("[f(a=1), g(b=", ", g(b=", [CALL_F]),
        ("[f(a=1) and g()]", "and g()]", [CALL_F]),
        # No calls.
        ("[f(a=1", "[f(a=1", []),
        ("[1] says so", "[1] says so", []),
        ("[link](http://x)", "[link](http://x)", []),
        ("[f (a=1)]", "[f (a=1)]", []),
        ("[]", "[]", []),
        ("[f(1)]", "[f(1)]", []),
        ("[f(a=b)]", "[f(a=b)]", []),
        ("[f(a=g())]", "[f(a=g())]", []),
        ("[f(**{'a': 1})]", "[f(**{'a': 1})]", []),
        ("[f(a=1]", "[f(a=1]", []),
        ("f(a=1)", "f(a=1)", []),
        ("Now [f(a=1)]", "Now [f(a=1)]", []),
    ],
)
def test_pythonic(text: str, content: str, calls: list[tuple[str, str]]) -> None:
    check("pythonic", text, content, calls)


def test_only_tools_of_the_request_are_called() -> None:
    check("pythonic", "[f(a=1)]", "[f(a=1)]", [], [tool("g")])
    check("pythonic", "[g(), f(a=1)]", ", f(a=1)]", [CALL_G], [tool("g")])


def test_text_is_withheld_only_while_it_may_become_a_call() -> None:
    parser = new_parser("pythonic", [tool("f")])
    assert parser.push("[g").content == ""
    assert parser.push("(").content == "[g("


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("()", "{}"),
        ("(a=true, b=null)", '{"a": true, "b": null}'),
        (r'(a="\d+\.\w \\d \n", b=r"\d")', r'{"a": "\\d+\\.\\w \\d \n", "b": "\\d"}'),
        ('(a="two\nlines", b="x\\\ny")', r'{"a": "two\nlines", "b": "xy"}'),
        ('(a="x" "y", b="")', '{"a": "xy", "b": ""}'),
        ('(a="""x""")', '{"a": "x"}'),
        (r'(a="\ud83d\ude42")', r'{"a": "\ud83d\ude42"}'),
        ("(a={1: 2})", None),
        ("(a={**b})", None),
        ("(a=1e999)", None),
        ("(a=1j)", None),
        ("(a=b'x')", None),
        ("(a=f'x')", None),
        ("(a=...)", None),
        ("(a=-'x')", None),
        ("(a={1})", None),
        ("(a=1)(b=2)", None),
        ("(a=1) + 1", None),
        ("(a=1\x00)", None),
        (r'(a="\N{no such}")', None),
        ("(a=" + "9" * 5_000 + ")", None),
    ],
)
def test_arguments_become_json(arguments: str, expected: str | None) -> None:
    assert arguments_json(arguments) == expected


literals = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(derandomize=True, deadline=None, max_examples=100)
@given(value=literals)
def test_what_python_writes_is_read(value: object) -> None:
    spelled = arguments_json(f"(a={value!r})")
    assert spelled is not None
    assert json.loads(spelled) == {"a": value}
