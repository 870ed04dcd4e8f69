import pytest
from tool_call_parsing import check

F = '{"name": "f", "parameters": {"a": 1}}'
G = '{"name": "g", "parameters": {}}'
CALL_F, CALL_G = ("f", '{"a": 1}'), ("g", "{}")


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        (f"[{F}]", "", [CALL_F]),
        (f" [ {F} ,\n{G} ]\n", "", [CALL_F, CALL_G]),
        (f"[{F},]", "", [CALL_F]),
        (f"[{F}", "", [CALL_F]),
        (f"[{F}, ", "", [CALL_F]),
        (f"[{F}] Done.", "Done.", [CALL_F]),
        (f"[{F}; {G}]", f"; {G}]", [CALL_F]),
        (f"[{F}, 5]", ", 5]", [CALL_F]),
        ("[]", "[]", []),
        ("[1, 2]\n", "[1, 2]\n", []),
        (F, F, []),
        ("[see above]", "[see above]", []),
        (f"x [{F}]", f"x [{F}]", []),
    ],
)
def test_json(text: str, content: str, calls: list[tuple[str, str]]) -> None:
    check("json", text, content, calls)
