"""Which parser a model's chat template calls for, by what it tells the model about calls."""

import re
from collections.abc import Iterator

from jinja2 import TemplateSyntaxError, nodes

from gateway.text.jinja_environment import chat_template_environment

# The first that occurs in the template's texts decides. A tag alone does not: GLM writes <tool_call>, too.
_MARKERS = (
    ("qwen", re.compile(r"<tool_call>\s*<function=")),
    ("hermes", re.compile(r'<tool_call>\s*\{\s*"')),
    ("mistral", re.compile(r"\[TOOL_CALLS\]")),
    ("pythonic", re.compile(r"\[\w+\(\w+=\w+")),
    ("llama3_json", re.compile(r'"name": (function name|""), "parameters": ')),
)


def detect_tool_call_parser(chat_template: str) -> str | None:
    """The name of a parser; None if the template ignores ``tools``, or spells calls in a way that we do not know."""
    try:
        template = chat_template_environment().parse(chat_template)
    except TemplateSyntaxError:
        return None
    if not any(name.name == "tools" for name in template.find_all(nodes.Name)):
        return None
    texts = "".join(_texts(template))
    return next((name for name, marker in _MARKERS if marker.search(texts)), None)


def _texts(template: nodes.Template) -> Iterator[str]:
    """What the template can print, in the order of its source."""
    for node in template.find_all((nodes.TemplateData, nodes.Const)):
        if isinstance(node, nodes.TemplateData):
            yield node.data
        elif isinstance(node, nodes.Const) and isinstance(node.value, str):
            yield node.value
