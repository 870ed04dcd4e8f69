import pytest

from gateway.text.chat_messages import normalize_messages
from ipc.errors import RequestError

CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": [2]}'}}


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("hello", "hello"),
        ("", ""),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "a\nb"),
        ([{"type": "text", "text": ""}], ""),
        ([{"type": "refusal", "refusal": "no"}], "no"),
    ],
)
def test_content_becomes_a_string(content: object, text: str) -> None:
    assert normalize_messages([{"role": "user", "content": content}]) == [{"role": "user", "content": text}]


def test_null_is_nothing_in_an_assistants_message() -> None:
    assert normalize_messages([{"role": "assistant", "content": None}]) == [{"role": "assistant", "content": ""}]


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "user"}, "messages[1].content"),
        ({"role": "user", "content": None}, "messages[1].content"),
        ({"role": "tool", "content": None}, "messages[1].content"),
        ({"role": "assistant", "tool_calls": []}, "messages[1].content"),
        ({"role": "user", "content": 5}, "messages[1].content"),
        ({"role": "user", "content": True}, "messages[1].content"),
        ({"role": "user", "content": {"type": "text", "text": "a"}}, "messages[1].content"),
        ({"role": "user", "content": []}, "messages[1].content"),
        ({"role": "user", "content": ["a"]}, "messages[1].content[0]"),
        ({"role": "user", "content": [{"text": "a"}]}, "messages[1].content[0]"),
        ({"role": "user", "content": [{"type": 5}]}, "messages[1].content[0]"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[1].content[0]"),
        ({"role": "user", "content": [{"type": "text", "text": None}]}, "messages[1].content[0]"),
        (
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {}}]},
            "messages[1].content[1]",
        ),
        ({"content": "a"}, "messages[1].role"),
        ({"role": "bot", "content": "a"}, "messages[1].role"),
        ({"role": None, "content": "a"}, "messages[1].role"),
        ({"role": ["user"], "content": "a"}, "messages[1].role"),
        ({"role": "assistant", "content": "", "tool_calls": {}}, "messages[1].tool_calls"),
        ({"role": "assistant", "tool_calls": [{}]}, "messages[1].tool_calls[0]"),
        (
            {"role": "assistant", "tool_calls": [CALL, {"function": {"name": "f", "arguments": "{"}}]},
            "messages[1].tool_calls[1].function.arguments",
        ),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[1]"}}]},
            "messages[1].tool_calls[0].function.arguments",
        ),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[" * 100_000}}]},
            "messages[1].tool_calls[0].function.arguments",
        ),
    ],
)
def test_what_templates_would_trip_over_is_refused(message: dict[str, object], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        normalize_messages([{"role": "user", "content": "first"}, message])
    assert caught.value.param == param
    assert caught.value.status == 400
    assert len(caught.value.message) < 200


def test_no_messages() -> None:
    with pytest.raises(RequestError) as caught:
        normalize_messages([])
    assert caught.value.param == "messages"


def test_tool_calls_need_no_content_and_get_objects_as_arguments() -> None:
    message = {"role": "assistant", "content": None, "tool_calls": [CALL], "refusal": None}
    without_content = {"role": "assistant", "tool_calls": [CALL]}
    expected = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": [2]}}}],
    }
    assert normalize_messages([message, without_content]) == [expected, expected]
    assert CALL["function"] == {"name": "add", "arguments": '{"a": 1, "b": [2]}'}  # the request is left as it was


@pytest.mark.parametrize("arguments", ["", None, {}, "{}"])
def test_no_arguments_are_an_empty_object(arguments: object) -> None:
    call = {"function": {"name": "now", "arguments": arguments}}
    (message,) = normalize_messages([{"role": "assistant", "tool_calls": [call]}])
    assert message["tool_calls"][0]["function"]["arguments"] == {}


def test_other_fields_pass() -> None:
    message = {"role": "tool", "content": "3", "tool_call_id": "c1", "name": "add"}
    assert normalize_messages([message]) == [message]
