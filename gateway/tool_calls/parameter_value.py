"""Values that a model wrote as bare text, as JSON of the type that the tool's schema asks for."""

import json
from collections.abc import Mapping
from typing import Any

_JSON_TYPES: tuple[tuple[type, str], ...] = (
    (bool, "boolean"),  # before int, whose subclass it is
    (int, "number"),
    (float, "number"),
    (list, "array"),
    (dict, "object"),
    (type(None), "null"),
)
_PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}


def parameter_json(text: str, schema: Mapping[str, Any], key: str) -> str:
    """The JSON text of the parameter ``key`` of a function with the arguments' ``schema``.

    The line breaks next to the tags are not the value's. The value is JSON as the model wrote it if it is of a type
    that the schema allows, and a string otherwise. Where the schema says nothing, an object or array is taken as such.
    """
    value = text.removeprefix("\n").removesuffix("\n")
    properties = schema.get("properties")
    types = _types(properties.get(key)) if isinstance(properties, Mapping) else set()
    written = value.strip()
    written = _PYTHON_WORDS.get(written, written)
    if _json_type(written) in (types or {"array", "object"}):
        return written
    return json.dumps(value, ensure_ascii=False)


def _types(schema: Any) -> set[str]:
    """The types that a property may have; none if its schema does not say."""
    if not isinstance(schema, Mapping):
        return set()
    declared = schema.get("type", [])
    types = {kind for kind in (declared if isinstance(declared, list) else [declared]) if isinstance(kind, str)}
    for alternatives in (schema.get("anyOf"), schema.get("oneOf")):
        for alternative in alternatives if isinstance(alternatives, list) else []:
            types |= _types(alternative)
    return {"number" if kind == "integer" else kind for kind in types}


def _json_type(text: str) -> str | None:
    """The type of a JSON text that is no string; None for any other text."""
    try:
        value = json.loads(text, parse_int=float, parse_constant=_refuse)  # an int of 5,000 digits is refused
    except (ValueError, RecursionError):
        return None
    return next((name for kind, name in _JSON_TYPES if isinstance(value, kind)), None)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")
