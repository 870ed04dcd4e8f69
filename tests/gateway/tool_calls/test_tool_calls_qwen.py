import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tool_call_parsing import check, new_parser, parse, tool

from gateway.tool_calls.parameter_value import parameter_json

F = "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>"
G = "<tool_call>\n<function=g>\n</function>\n</tool_call>"
TOOLS = [tool("f", a={"type": "integer"}, b={"type": "string"}), tool("g")]
CALL_F, CALL_G = ("f", '{"a": 1}'), ("g", "{}")


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        (F, "", [CALL_F]),
        (f"I see.\n\n{F}\n{G}\n", "I see.", [CALL_F, CALL_G]),
        (
            "<tool_call><function=f><parameter=a>1</parameter><parameter=b>Münster 🙂</parameter>"
            "</function></tool_call>",
            "",
            [("f", '{"a": 1, "b": "Münster 🙂"}')],
        ),
        (
            '<tool_call>\n<function=f>\n<parameter=b>\n\n  if a < 1:\n    "x" </b>\n\n</parameter>\n'
            "</function>\n</tool_call>",
            "",
            [("f", json.dumps({"b": '\n  if a < 1:\n    "x" </b>\n'}))],
        ),
        (F.removeprefix("<tool_call>\n"), "", [CALL_F]),  # the model forgot the outer tag
        (F.removeprefix("<tool_call>\n") + "\nDone.", "Done.", [CALL_F]),
        (F.removesuffix("</tool_call>") + G, "", [CALL_F, CALL_G]),
        (F.removesuffix("</tool_call>"), "", [CALL_F]),
        # Content.
        ("<tool_call>\nNo.", "<tool_call>\nNo.", []),
        ("<tool_call>\n<function=", "<tool_call>\n<function=", []),
        ("<function=>", "<function=>", []),
        ("a <function f>", "a <function f>", []),
        (f"<tool_call>{F}", "<tool_call>", [CALL_F]),
        # Broken off: what was sent stays.
        ("<tool_call>\n<function=f>\n<param", "", [("f", "")]),
        ("<tool_call>\n<function=f>\n</function>\n</tool_c", "", [("f", "{}")]),
        ("<function=f>\n</function>\n</tool_c", "", [("f", "{}")]),
        ("<tool_call>\n<function=f>\n<parameter=a>\n12", "", [("f", "")]),
        ("<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n", "", [("f", '{"a": 1')]),
        # Malformed: the rest of the call is dropped.
        (f"<tool_call>\n<function=f>\noops\n</function>\n</tool_call>\n{G}", "", [("f", ""), CALL_G]),
    ],
)
def test_qwen(text: str, content: str, calls: list[tuple[str, str]]) -> None:
    check("qwen", text, content, calls, TOOLS)


def test_arguments_are_sent_parameter_by_parameter() -> None:
    parser = new_parser("qwen", TOOLS)
    (delta,) = parser.push("<tool_call>\n<function=f>\n<parameter=a>\n1\n").tool_calls
    assert (delta.name, delta.arguments) == ("f", "")
    (delta,) = parser.push("</parameter>").tool_calls
    assert (delta.name, delta.arguments) == (None, '{"a": 1')
    (delta,) = parser.push("\n<parameter=b>1</parameter></function>").tool_calls
    assert delta.arguments == ', "b": "1"}'


@pytest.mark.parametrize(
    ("schema", "value", "expected"),
    [
        ({"type": "integer"}, "\n12\n", "12"),
        ({"type": "number"}, "1.5e3", "1.5e3"),
        ({"type": "boolean"}, "True", "true"),
        ({"type": "boolean"}, "false", "false"),
        ({"type": "array"}, '[1, "ü"]', '[1, "ü"]'),
        ({"type": "object"}, '\n{\n "a": 1\n}\n', '{\n "a": 1\n}'),
        ({"type": ["string", "null"]}, "None", "null"),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "null", "null"),
        ({"oneOf": [{"type": "string"}, {"type": "array"}]}, "[1]", "[1]"),
        ({"type": "string"}, "12", '"12"'),
        ({"type": "string"}, "null", '"null"'),
        ({"type": "string"}, '{"a": 1}', '"{\\"a\\": 1}"'),
        # Not of the type: the model's words, as a string.
        ({"type": "integer"}, "twelve", '"twelve"'),
        ({"type": "integer"}, "012", '"012"'),
        ({"type": "integer"}, "NaN", '"NaN"'),
        ({"type": "object"}, "{'a': 1}", "\"{'a': 1}\""),
        ({"type": "array"}, "[" * 100_000, json.dumps("[" * 100_000)),
        # The schema does not say.
        ({}, "12", '"12"'),
        ({}, "[1]", "[1]"),
        (None, '{"a": 1}', '{"a": 1}'),
        ({"type": 5, "anyOf": "x"}, "x", '"x"'),
    ],
)
def test_values_have_the_type_of_the_schema(schema: object, value: str, expected: str) -> None:
    properties = {} if schema is None else {"a": schema}
    assert parameter_json(value, {"properties": properties}, "a") == expected


def test_a_schema_may_be_anything() -> None:
    assert parameter_json("1", {"properties": []}, "a") == '"1"'
    assert parse("qwen", [F], [{"type": "function"}, {"name": "f", "parameters": None}]).calls == [("f", '{"a": "1"}')]


@settings(derandomize=True, deadline=None, max_examples=100)
@given(value=st.text(), kind=st.sampled_from(["integer", "string", "array", "null", None]))
def test_every_value_becomes_json(value: str, kind: str | None) -> None:
    spelled = parameter_json(value, {"properties": {"a": {"type": kind}}}, "a")
    decoded = json.loads(spelled)
    assert kind != "string" or decoded == value.removeprefix("\n").removesuffix("\n")
