"""Templates in the style of the models that they stand for, reduced to what tells them apart."""

import pytest

from gateway.tool_calls.detect import detect_tool_call_parser

HERMES = (
    "{%- if tools %}{{- '<tools>' }}{%- for tool in tools %}{{- tool | tojson }}{%- endfor %}"
    '{{- "</tools>\\n<tool_call>\\n{\\"name\\": <function-name>, \\"arguments\\": <args>}\\n</tool_call>" }}'
    "{%- endif %}{%- for message in messages %}{{- message.content }}{%- endfor %}"
)
IN_PARTS = (
    '{%- set text = "<tool_call>\\n" ~ "{\\"name\\": <function-name>}" -%}{% if tools %}{{ text }}{% endif %}'
    "{% generation %}{{ messages }}{% endgeneration %}"
)
QWEN = (
    "{%- if tools is iterable and tools | length > 0 %}"
    "{{- '<tool_call>\\n<function=example>\\n<parameter=a>\\n1\\n</parameter>\\n</function>' }}{%- endif %}"
)
LLAMA3 = (
    '{%- if not tools is defined %}{%- set tools = none %}{%- endif %}{{- "Environment: ipython\\n" }}'
    '{{- \'Respond in the format {"name": function name, "parameters": dictionary of argument name and its value}.\' }}'
)
LLAMA3_CALLS_ONLY = (
    "{% for tool in tools %}{{ tool }}{% endfor %}{{- '{\"name\": \"' + call.name + '\", ' }}{{- '\"parameters\": ' }}"
)
MISTRAL = "{%- if tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}{% endif %}{{ '[TOOL_CALLS]' + name + '[ARGS]' }}"
PYTHONIC = (
    "{% if tools is not none %}{{ 'put it in the format of [func_name1(params_name1=params_value1, "
    "params_name2=params_value2...), func_name2(params)]' }}{{ tools | tojson }}{% endif %}"
)
GLM = "{% if tools %}{{ '<tool_call>{function-name}\\n<arg_key>{arg-key-1}</arg_key>\\n</tool_call>' }}{% endif %}"
SEED = "{% if tools %}{{ '<seed:tool_call>\\n<function=f>' }}{% endif %}"
COHERE = '{% for tool in tools %}{"name": "{{ tool.name }}", "description": "x", "parameters": {}}{% endfor %}'


@pytest.mark.parametrize(
    ("template", "name"),
    [
        (HERMES, "hermes"),
        (IN_PARTS, "hermes"),
        (QWEN, "qwen"),
        (LLAMA3, "llama3_json"),
        (LLAMA3_CALLS_ONLY, "llama3_json"),
        (MISTRAL, "mistral"),
        (PYTHONIC, "pythonic"),
        (GLM, None),
        (SEED, None),
        (COHERE, None),
        ("{% for tool in tools %}{{ tool }}{% endfor %}", None),
        (HERMES.replace("tools %}", "functions %}"), None),
        ("{# tools #}{{ 'tools: <tool_call>{\"name\"' }}", None),
        ("{% for message in messages %}{{ message.content }}{% endfor %}", None),
        ("{% if tools %}", None),
        ("", None),
    ],
)
def test_detect(template: str, name: str | None) -> None:
    assert detect_tool_call_parser(template) == name
