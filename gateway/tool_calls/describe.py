"""Tools, told to a model whose chat template does not know them."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from gateway.tool_calls.functions import functions_of
from gateway.tool_calls.parser import ToolCallFormat

_ARGUMENTS = '{"<name of a parameter>": <its value>}'


def describe_tools(tools: Sequence[Mapping[str, Any]], format: ToolCallFormat) -> str:
    """Text for a system message: which functions there are, and how to call one or several of them."""
    functions = "\n".join(json.dumps(function, ensure_ascii=False) for function in functions_of(tools))
    one = _spelled(format, ["<name of the function>"])
    several = _spelled(format, ["<name of the first function>", "<name of the second function>"])
    return (
        "You can call functions. These are all there are, each with a JSON schema of its parameters:\n"
        f"<tools>\n{functions}\n</tools>\n\n"
        f"To call a function, answer in exactly this form, with a JSON object of its arguments:\n{one}\n\n"
        f"To call several at once:\n{several}\n\n"
        "If no function helps, or an argument is not known, answer in plain words instead."
    )


def _spelled(format: ToolCallFormat, names: Sequence[str]) -> str:
    calls = (
        f'{format.call_begin}{{"{format.name_key}": "{name}", "{format.arguments_key}": {_ARGUMENTS}}}{format.call_end}'
        for name in names
    )
    return format.begin + format.separator.join(calls) + format.end
