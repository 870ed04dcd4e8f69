import pytest
from tool_call_parsing import check

from gateway.tool_calls.mistral import MistralParser

CALL_F, CALL_G = ("f", '{"a": 1}'), ("g", "{}")


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        (
            '[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}, "id": "abcdefghi"}]',
            "",
            [CALL_F, CALL_G],
        ),
        ('[TOOL_CALLS][{"arguments": {"a": 1}, "name": "f"}]', "", [CALL_F]),
        ('[TOOL_CALLS]{"name": "f", "arguments": {"a": 1}}', "", [CALL_F]),
        ('I see.\n[TOOL_CALLS]f[ARGS]{"a": 1}', "I see.", [CALL_F]),
        ('[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g[ARGS]{}', "", [CALL_F, CALL_G]),
        ('[TOOL_CALLS]f{"a": 1}[TOOL_CALLS]g{}', "", [CALL_F, CALL_G]),
        ('[TOOL_CALLS] f[CALL_ID]123456789[ARGS] {"a": 1}', "", [CALL_F]),
        ('[TOOL_CALLS]ns.f-2[ARGS]{"a": 1}', "", [("ns.f-2", '{"a": 1}')]),
        ('[TOOL_CALLS]f[ARGS]{"a": "[TOOL_CALLS]"}', "", [("f", '{"a": "[TOOL_CALLS]"}')]),
        # Broken off or malformed.
        ("[TOOL_CALLS]", "[TOOL_CALLS]", []),
        ("[TOOL_CALLS]get_wea", "[TOOL_CALLS]get_wea", []),
        ("[TOOL_CALLS]f[ARGS]", "[TOOL_CALLS]f[ARGS]", []),
        ('[TOOL_CALLS]f[ARGS]{"a', "", [("f", '{"a')]),
        ('[TOOL_CALLS]f[ARGS]{"a"]} x', "]} x", [("f", '{"a"')]),
        ("[TOOL_CALLS] are special", "[TOOL_CALLS] are special", []),
        ('[TOOL_CALLS]no [TOOL_CALLS]f[ARGS]{"a": 1}', "[TOOL_CALLS]no", [CALL_F]),
        ("[TOOL_CALLS] [1]", "[TOOL_CALLS] [1]", []),
        ("a [TOOL", "a [TOOL", []),
        ("[1] [TOOLS]", "[1] [TOOLS]", []),
    ],
)
def test_mistral(text: str, content: str, calls: list[tuple[str, str]]) -> None:
    check("mistral", text, content, calls)


def test_the_tags_are_special_tokens() -> None:
    assert MistralParser.needs_special_tokens
