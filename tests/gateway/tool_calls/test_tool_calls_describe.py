import json

import pytest
from tool_call_parsing import CLASSES, NAMES, tool

from gateway.tool_calls.describe import describe_tools
from gateway.tool_calls.hermes import HermesParser

TOOLS = [tool("get_weather", city={"type": "string", "description": "e.g. Köln"}), tool("stop")]


def test_every_function_is_described_in_a_line_of_json() -> None:
    text = describe_tools(TOOLS, HermesParser.format)
    described = text.partition("<tools>\n")[2].partition("\n</tools>")[0].split("\n")
    assert [json.loads(line) for line in described] == [given["function"] for given in TOOLS]
    assert "Köln" in text


def test_the_form_is_shown_for_one_call_and_for_two() -> None:
    text = describe_tools(TOOLS, HermesParser.format)
    assert '\n<tool_call>\n{"name": "<name of the function>", "arguments": {' in text
    assert text.count("</tool_call>") == 3
    assert "</tool_call>\n<tool_call>" in text


@pytest.mark.parametrize("name", [name for name in NAMES if CLASSES[name].format])
def test_any_format_can_be_shown(name: str) -> None:
    form = CLASSES[name].format
    text = describe_tools(TOOLS, form)
    for part in (form.begin, form.end, form.separator, form.call_begin, form.call_end):
        assert part in text
    assert f'"{form.arguments_key}": ' in text
