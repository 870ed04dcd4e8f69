"""JSON schema's ``oneOf`` where it is ``anyOf``: no value fits two of the alternatives. Knows no backend."""

import json
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any

MAX_ALTERNATIVES = 64
"""Of one ``oneOf``; more are not compared with each other."""

_TYPES_OF_INTEGER = {"integer", "number"}


def one_of_is_any_of(schema: Any) -> bool:
    """Whether that is so of every ``oneOf`` in it: by the alternatives' types, or by the values of a property that
    both require (a union's tag). What cannot be told apart so may overlap. A schema need not be a valid one."""
    return all(
        len(alternatives) <= MAX_ALTERNATIVES
        and all(_are_apart(schema, first, second) for first, second in combinations(alternatives, 2))
        for alternatives in _one_ofs(schema)
    )


def _one_ofs(node: Any) -> Iterator[Sequence[Any]]:
    values = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    if isinstance(node, dict) and isinstance(node.get("oneOf"), list):
        yield node["oneOf"]
    for value in values:
        yield from _one_ofs(value)


def _are_apart(root: Any, first: Any, second: Any) -> bool:
    first, second = _resolved(root, first), _resolved(root, second)
    if not isinstance(first, dict) or not isinstance(second, dict):
        return first is False or second is False
    if _values_apart(first, second):
        return True
    types = [_types(alternative) for alternative in (first, second)]
    if all(types) and not types[0] & types[1] and not all(one & _TYPES_OF_INTEGER for one in types):
        return True
    if types != [{"object"}, {"object"}]:
        return False
    tags = _required(first) & _required(second)
    return any(_values_apart(*(_resolved(root, _property(one, tag)) for one in (first, second))) for tag in tags)


def _required(schema: dict[str, Any]) -> set[str]:
    names = schema.get("required")
    return {name for name in names if isinstance(name, str)} if isinstance(names, list) else set()


def _property(schema: dict[str, Any], name: str) -> Any:
    properties = schema.get("properties")
    return properties.get(name) if isinstance(properties, dict) else None


def _values_apart(first: Any, second: Any) -> bool:
    values = [_values(one) for one in (first, second)]
    return values[0] is not None and values[1] is not None and not values[0] & values[1]


def _values(schema: Any) -> set[str] | None:
    """All that fits, as JSON, if the schema lists it."""
    if not isinstance(schema, dict):
        return None
    listed = [schema["const"]] if "const" in schema else schema.get("enum")
    return {json.dumps(_plain(value), sort_keys=True) for value in listed} if isinstance(listed, list) else None


def _plain(value: Any) -> Any:
    """JSON Schema holds 1.0 and 1 for the same number."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return {key: _plain(one) for key, one in value.items()} if isinstance(value, dict) else value


def _types(schema: dict[str, Any]) -> set[str]:
    said = schema.get("type")
    listed = [said] if isinstance(said, str) else said if isinstance(said, list) else []
    return {one for one in listed if isinstance(one, str)}


def _resolved(root: Any, schema: Any) -> Any:
    """What a ``$ref`` stands for; itself where there is none, or none that can be followed."""
    for _ in range(16):  # a chain of them may end in a ring
        reference = schema.get("$ref") if isinstance(schema, dict) else None
        if not isinstance(reference, str) or not reference.startswith("#/"):
            return schema
        node = root
        for part in reference[2:].split("/"):
            node = node.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(node, dict) else None
        schema = node
    return None
