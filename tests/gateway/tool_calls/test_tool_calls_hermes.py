import pytest
from tool_call_parsing import check, new_parser

F = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
G = '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>'
CALL_F, CALL_G = ("f", '{"a": 1}'), ("g", "{}")


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ("", "", []),
        (" \n", " \n", []),
        ("Hello.\n", "Hello.\n", []),
        (F, "", [CALL_F]),
        (f"{F}\n{G}", "", [CALL_F, CALL_G]),
        (f"{F}{G}", "", [CALL_F, CALL_G]),
        ('<tool_call>{"name":"f","arguments":{"a": 1}}</tool_call>', "", [CALL_F]),
        # White space next to a call counts between two pieces of content only.
        (f"\n\n{F}\n", "", [CALL_F]),
        (f"Let me see.\n\n{F}", "Let me see.", [CALL_F]),
        (f"Let me see. {F}\n{G}\n  Done.\n", "Let me see. \n\n  Done.\n", [CALL_F, CALL_G]),
        (f"\n{F} Done.", "Done.", [CALL_F]),
        (f"a{F}b", "ab", [CALL_F]),
        # What looks like a tag.
        ("a <tool", "a <tool", []),
        ("a <tool_call", "a <tool_call", []),
        ("a <tool_call b>", "a <tool_call b>", []),
        ("a <tool_calls>", "a <tool_calls>", []),
        ("<<tool_call>", "<<tool_call>", []),
        (f"<tool_<{F}", "<tool_<", [CALL_F]),
        ("</tool_call>\n", "</tool_call>\n", []),
        ("The tag <tool_call> opens a call.", "The tag <tool_call> opens a call.", []),
        (f"<tool_call>\n{F}", "<tool_call>", [CALL_F]),
        (f"Write <tool_call> first.\n{F}", "Write <tool_call> first.", [CALL_F]),
        # Malformed before the name: content, with its tags.
        ("<tool_call>\nf(1)\n</tool_call>", "<tool_call>\nf(1)\n</tool_call>", []),
        ("<tool_call>{'name': 'f'}</tool_call>", "<tool_call>{'name': 'f'}</tool_call>", []),
        (f"<tool_call>{{bad}}</tool_call>\n{F}", "<tool_call>{bad}</tool_call>", [CALL_F]),
        # Malformed after the name: what was sent stays, what is left up to the tag is dropped.
        (f'<tool_call>{{"name": "f", "arguments": {{"a": [1}}}}</tool_call>\n{G}', "", [("f", '{"a": [1'), CALL_G]),
        ('<tool_call>{"name": "f", "arguments": {"a": 1}}}\n</tool_call> ok', "ok", [CALL_F]),
        ('<tool_call>{"name": "f", "arguments": {"a": 1}\n</tool_call> ok', "ok", [CALL_F]),
        ('<tool_call>{"name": "f", "arguments": {"a": 1 </tool_call> ok', "ok", [("f", '{"a": 1 ')]),
        ('<tool_call>{"name": "f", oops}</tool_call> ok', "ok", [("f", "")]),
        # A closing tag that was forgotten.
        (F.removesuffix("\n</tool_call>"), "", [CALL_F]),
        (F.removesuffix("</tool_call>"), "", [CALL_F]),
        (F.removesuffix("</tool_call>") + G, "", [CALL_F, CALL_G]),
        (F.removesuffix("</tool_call>") + "Done.", "Done.", [CALL_F]),
        (F.removesuffix("call>"), "", [CALL_F]),
        (F.removesuffix("call>") + "x", "</tool_x", [CALL_F]),
        # Several objects in one block.
        ('<tool_call>{"name": "f", "arguments": {"a": 1}}\n{"name": "g"}</tool_call>', "", [CALL_F, CALL_G]),
        ('<tool_call>{"name": "g"}{bad}</tool_call>', "{bad}</tool_call>", [CALL_G]),
    ],
)
def test_hermes(text: str, content: str, calls: list[tuple[str, str]]) -> None:
    check("hermes", text, content, calls)


def test_text_is_withheld_only_while_it_may_become_a_tag() -> None:
    parser = new_parser("hermes")
    assert parser.push("a <").content == "a"
    assert parser.push("tool_cal").content == ""
    assert parser.push("X").content == " <tool_calX"
    assert parser.push("<tool_call>\n").content == ""
    assert parser.push("b").content == "<tool_call>\nb"
