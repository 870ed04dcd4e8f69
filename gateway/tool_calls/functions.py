"""The functions among a request's tools."""

from collections.abc import Mapping, Sequence
from typing import Any


def functions_of(tools: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Name, description, parameters of each: of ``{"type": "function", "function": {…}}``, or without the wrapping."""
    functions = [tool.get("function", tool) for tool in tools]
    return [function for function in functions if isinstance(function, Mapping) and "name" in function]


def parameter_schemas(tools: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """The JSON schema of each function's arguments by its name; an empty one for a function that gives none."""
    schemas: dict[str, Mapping[str, Any]] = {}
    for function in functions_of(tools):
        parameters = function.get("parameters")
        schemas[function["name"]] = parameters if isinstance(parameters, Mapping) else {}
    return schemas
