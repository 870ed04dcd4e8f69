import pytest
from tool_call_parsing import check

F = '{"name": "f", "parameters": {"a": 1}}'
G = '{"name": "g", "parameters": {}}'
CALL_F, CALL_G = ("f", '{"a": 1}'), ("g", "{}")


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        (F, "", [CALL_F]),
        (f"\n{F}\n", "", [CALL_F]),
        (f"<|python_tag|>{F}", "", [CALL_F]),
        (f"<|python_tag|> {F}; {G}", "", [CALL_F, CALL_G]),
        (f"{F};{G}", "", [CALL_F, CALL_G]),
        (f"{F}\n\n{G}", "", [CALL_F, CALL_G]),
        (f"{F} ; <|python_tag|>{G}", "", [CALL_F, CALL_G]),
        (f"{F}; ", "", [CALL_F]),
        (f'{F}; {{"na', '; {"na', [CALL_F]),
        # Content after the calls; nothing is a call after it.
        (f"{F}\nDone. {G}", f"Done. {G}", [CALL_F]),
        (f"{F}; and {{", "; and {", [CALL_F]),
        (f"{F}}}", "}", [CALL_F]),
        # Only at the beginning.
        (f"I call {F}", f"I call {F}", []),
        (f"; {F}", f"; {F}", []),
        ("<|python_tag|>print(1)", "<|python_tag|>print(1)", []),
        ("<|python", "<|python", []),
        # Answers that are JSON.
        ('{"city": "Paris"}\n', '{"city": "Paris"}\n', []),
        ('  {"city": ["Paris', '  {"city": ["Paris', []),
        ("[1, 2]", "[1, 2]", []),
        # Malformed after the name: what follows is content.
        ('{"name": "f", "parameters": {"a" 1}} x', "1}} x", [("f", '{"a" ')]),
    ],
)
def test_llama3_json(text: str, content: str, calls: list[tuple[str, str]]) -> None:
    check("llama3_json", text, content, calls)
