"""Brings chat messages into the one shape that chat templates expect: content is a string.

Checks what a template would otherwise trip over or print as it is. Knows nothing of templates and tokens.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ipc.errors import RequestError

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
TEXT_PART_SEPARATOR = "\n"

_TEXT_PARTS = {"text": "text", "refusal": "refusal"}  # type of a part: the field with its text


def normalize_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Messages in which ``content`` is a string, null fields are absent and tool arguments are objects.

    - content: null is "" in an assistant's message and refused elsewhere; text parts are joined by a line feed, so they
      give the same prompt as that string. It may be missing only in an assistant's message with tool_calls. Any other
      part is refused, as is an empty list.
    - OpenAI sends the arguments of a tool call as a string of JSON, templates print an object.

    Raises RequestError that names the message and the field.
    """
    if not messages:
        raise RequestError("messages must not be empty.", param="messages")
    return [_normalize_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def with_system_text(messages: Sequence[Mapping[str, Any]], text: str) -> list[dict[str, Any]]:
    """The messages with ``text`` at the end of the system message, or as one before them all."""
    first, *rest = messages or ({},)
    if first.get("role") not in ("system", "developer"):
        return [{"role": "system", "content": text}, *map(dict, messages)]
    content = first.get("content")
    if isinstance(content, list):
        content = [*content, {"type": "text", "text": text}]
    else:
        content = f"{content}\n\n{text}" if content else text
    return [{**first, "content": content}, *map(dict, rest)]


def _normalize_message(message: Mapping[str, Any], where: str) -> dict[str, Any]:
    role = message.get("role")
    if role not in ROLES:
        raise RequestError(f"{where}.role must be one of {', '.join(ROLES)}.", param=f"{where}.role")
    normalized = {key: value for key, value in message.items() if value is not None}
    if "content" not in message and not (role == "assistant" and message.get("tool_calls")):
        raise RequestError(f"{where} has no content.", param=f"{where}.content")
    if message.get("content") is None and role != "assistant":
        raise RequestError(f"{where}.content must not be null.", param=f"{where}.content")
    normalized["content"] = _normalize_content(message.get("content"), f"{where}.content")
    if "tool_calls" in normalized:
        normalized["tool_calls"] = _normalize_tool_calls(normalized["tool_calls"], f"{where}.tool_calls")
    return normalized


def _normalize_content(content: object, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list | tuple):
        raise RequestError(f"{where} must be a string, a list of parts or null.", param=where)
    if not content:
        raise RequestError(f"{where} must not be an empty list.", param=where)
    return TEXT_PART_SEPARATOR.join(_part_text(part, f"{where}[{index}]") for index, part in enumerate(content))


def _part_text(part: object, where: str) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if not isinstance(part, Mapping) or not isinstance(kind, str):
        raise RequestError(f"{where} must be an object with a type.", param=where)
    if kind not in _TEXT_PARTS:
        raise RequestError(f"{where} is of type {kind[:40]!r}; this model takes text only.", param=where)
    text = part.get(_TEXT_PARTS[kind])
    if not isinstance(text, str):
        raise RequestError(f"{where}.{_TEXT_PARTS[kind]} must be a string.", param=where)
    return text


def _normalize_tool_calls(tool_calls: object, where: str) -> list[dict[str, Any]]:
    if not isinstance(tool_calls, list | tuple):
        raise RequestError(f"{where} must be a list.", param=where)
    normalized = []
    for index, call in enumerate(tool_calls):
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping):
            raise RequestError(f"{where}[{index}] must be an object with a function.", param=f"{where}[{index}]")
        arguments = _parse_arguments(function.get("arguments"), f"{where}[{index}].function.arguments")
        normalized.append({**call, "function": {**function, "arguments": arguments}})
    return normalized


def _parse_arguments(arguments: object, where: str) -> Mapping[str, Any]:
    if arguments is None or arguments == "":
        return {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError) as error:
            raise RequestError(f"{where} is not valid JSON.", param=where) from error
    if not isinstance(arguments, Mapping):
        raise RequestError(f"{where} must be a JSON object.", param=where)
    return arguments
