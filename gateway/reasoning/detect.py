"""Which parser a model's chat template calls for, by the tags that stand in it."""

import re

_SWITCHES = re.compile(r"\b(enable_)?thinking\b")


def detect_reasoning_parser(chat_template: str) -> str | None:
    """The name of a parser; None if the template knows no reasoning that we do.

    A parser for texts that are open from the start is only chosen if every prompt opens them: DeepSeek V3 shares a
    template with R1 up to that, and does not reason.
    """
    if "[THINK]" in chat_template:
        return "magistral"
    if "Here is my thought process:" in chat_template:
        return "granite"
    if "</think>" not in chat_template:
        return None
    has_switch = _SWITCHES.search(chat_template) is not None
    if "<｜Assistant｜><think>" in chat_template and not has_switch:
        return "deepseek_r1"
    return "qwen3" if "<|im_start|>" in chat_template and "enable_thinking" in chat_template else "think"
