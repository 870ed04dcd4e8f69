"""Templates in the style of the models that they stand for, reduced to what tells them apart."""

import pytest

from gateway.reasoning.detect import detect_reasoning_parser

QWEN3 = (
    "{{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning + '\\n</think>\\n\\n' }}"
    "{%- if enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}"
)
THINKING_ONLY = "{{- '<|im_start|>assistant\\n<think>\\n' }}{%- set content = content.split('</think>')[-1] %}"
DEEPSEEK = "{% set content = content.split('</think>')[-1] %}{{ '<｜Assistant｜>' + content }}"


@pytest.mark.parametrize(
    ("template", "name"),
    [
        (QWEN3, "qwen3"),
        (THINKING_ONLY, "think"),
        ("<|assistant|>{{ '<think></think>' if not enable_thinking }}", "think"),
        (DEEPSEEK + "{{ '<｜Assistant｜><think>\\n' }}", "deepseek_r1"),
        (DEEPSEEK + "{{ '<｜Assistant｜>' }}", "think"),
        (DEEPSEEK + "{% if thinking %}{{ '<｜Assistant｜><think>' }}{% endif %}", "think"),
        ("{{ 'Your thinking process: [THINK]Your thoughts[/THINK]Your answer' }}", "magistral"),
        ("Write your thoughts after 'Here is my thought process:' and so on", "granite"),
        ("{{ messages }}", None),
        ("<mm:think></mm:think>", None),
        ("", None),
    ],
)
def test_detect(template: str, name: str | None) -> None:
    assert detect_reasoning_parser(template) == name
