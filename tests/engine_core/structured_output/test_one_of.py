from typing import Any

import pytest

from engine_core.structured_output.one_of import one_of_is_any_of


def tagged(value: Any, *, is_required: bool = True) -> dict[str, Any]:
    return {"type": "object", "properties": {"kind": {"const": value}}, "required": ["kind"] if is_required else []}


CAT = {"$ref": "#/$defs/cat"}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({}, True),
        (True, True),
        ({"oneOf": [{"type": "string"}, {"type": "integer"}, {"type": "null"}]}, True),
        ({"oneOf": [{"type": "number"}, {"type": "integer"}]}, False),
        ({"oneOf": [{"type": ["string", "null"]}, {"type": "null"}]}, False),
        ({"oneOf": [{"const": 1}, {"enum": [2, 3]}]}, True),
        ({"oneOf": [{"enum": [1, 2]}, {"enum": [2, 3]}]}, False),
        ({"oneOf": [tagged("a"), tagged("b")]}, True),
        ({"oneOf": [tagged("a"), tagged("a")]}, False),
        ({"oneOf": [tagged("a"), tagged("b", is_required=False)]}, False),
        ({"oneOf": [{}, {"type": "string"}]}, False),
        ({"oneOf": [False, {}]}, True),
        ({"properties": {"pet": {"oneOf": [CAT, tagged("dog")]}}, "$defs": {"cat": tagged("cat")}}, True),
        ({"properties": {"pet": {"oneOf": [CAT, tagged("cat")]}}, "$defs": {"cat": tagged("cat")}}, False),
        ({"items": {"oneOf": [CAT, {"type": "null"}]}, "$defs": {"cat": CAT}}, False),
        ({"oneOf": [{"$ref": "#/nowhere"}, {"type": "null"}]}, False),
        ({"oneOf": [{"const": 1}, {"const": 1.0}]}, False),
        ({"oneOf": [{"const": [1]}, {"const": [True]}]}, True),
        ({"oneOf": [{"type": "object", "required": [{}], "properties": []}, tagged("a")]}, False),
        ({"oneOf": [{"type": 5}, {"type": [5, {}]}]}, False),
        ({"oneOf": [{"enum": 5}, {"enum": [[], {}]}]}, False),
        ({"oneOf": 5}, True),
        ({"oneOf": [{"const": number} for number in range(64)]}, True),
        ({"oneOf": [{"const": number} for number in range(65)]}, False),
    ],
)
def test_alternatives_that_cannot_overlap(schema: Any, expected: bool) -> None:
    assert one_of_is_any_of(schema) is expected
