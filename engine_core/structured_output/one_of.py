"""JSON schema's ``oneOf`` where it is ``anyOf``: no value fits two of the alternatives. Knows no backend."""

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any

_TYPES_OF_INTEGER = {"integer", "number"}


def one_of_is_any_of(schema: Any) -> bool:
    """Whether that is so of every ``oneOf`` in it: by the alternatives' types, or by the values of a property that
    both require (a union's tag). What cannot be told apart so may overlap."""
    return all(
        _are_apart(schema, first, second)
        for alternatives in _one_ofs(schema)
        for first, second in combinations(alternatives, 2)
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
    tags = set(first.get("required", ())) & set(second.get("required", ()))
    properties = [alternative.get("properties", {}) for alternative in (first, second)]
    return any(_values_apart(*(_resolved(root, one.get(tag, {})) for one in properties)) for tag in tags)


def _values_apart(first: Any, second: Any) -> bool:
    values = [_values(one) for one in (first, second)]
    return values[0] is not None and values[1] is not None and not any(one in values[1] for one in values[0])


def _values(schema: Any) -> list[Any] | None:
    """All that fits, if the schema lists it."""
    if not isinstance(schema, dict):
        return None
    if "const" in schema:
        return [schema["const"]]
    listed = schema.get("enum")
    return listed if isinstance(listed, list) else None


def _types(schema: dict[str, Any]) -> set[str]:
    said = schema.get("type", [])
    return {said} if isinstance(said, str) else {one for one in said if isinstance(one, str)}


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
