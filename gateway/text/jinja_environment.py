"""The sandboxed Jinja environment that chat templates of the Hugging Face hub are written for.

Owns what a template may call. Knows nothing of messages and tokenizers.
"""

import json
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import Environment, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

_MAX_MESSAGE_CHARS = 300
# What templates raise for values that they do not expect: their own refusal, or what Python does on the way.
TEMPLATE_FAILURES = (
    TemplateError,
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)


def chat_template_environment() -> Environment:
    """Blocks leave no white space of their own; values cannot be changed and underscored attributes not reached."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,  # the output is a prompt, not HTML
        extensions=[loopcontrols, GenerationTag],
    )
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = strftime_now
    del environment.globals["lipsum"]  # makes text of any length
    return environment


def failure_text(error: BaseException) -> str:
    """What a template failed of, on one line and bounded."""
    return " ".join(str(error).split())[:_MAX_MESSAGE_CHARS]


class GenerationTag(Extension):
    """``{% generation %} ... {% endgeneration %}`` marks the model's words, for training; here it is only a scope."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without Jinja's escapes for HTML: models are trained on the plain form."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def raise_exception(message: str) -> NoReturn:
    """Lets a template refuse messages that it cannot render."""
    raise TemplateError(message)


def strftime_now(format: str) -> str:
    """The local time, for templates that tell the model the date."""
    return datetime.now().strftime(format)
