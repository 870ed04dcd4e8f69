"""Tools over HTTP: who is told of them, what is forced, and calls streamed as they are whole."""

import json
from typing import Any

import msgspec
import pytest
from gateway_fakes import CHAT, FakeEngineClient, call, chat, ids, make_state

from gateway.app import create_app
from ipc.grammar import CallGrammar

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "the weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
TIME = {"type": "function", "function": {"name": "get_time"}}
NAMED = {"type": "function", "function": {"name": "get_weather"}}


@pytest.fixture
def app(engine: FakeEngineClient) -> Any:
    """With room for what models are told of tools."""
    engine._ready = msgspec.structs.replace(engine._ready, max_model_len=8192, num_blocks=4096)
    return create_app(make_state(engine))


def spelled(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def streamed_calls(events: list[Any]) -> dict[int, dict[str, Any]]:
    """Calls put together as a client does it; ids and names must come once, in the first delta of their call."""
    calls: dict[int, dict[str, Any]] = {}
    for event in events[:-1]:
        for choice in event["choices"]:
            for delta in choice["delta"].get("tool_calls", ()):
                call = calls.setdefault(delta["index"], {"arguments": "", "ids": [], "names": [], "types": []})
                call["arguments"] += delta["function"]["arguments"]
                call["ids"] += [delta["id"]] if "id" in delta else []
                call["names"] += [delta["function"]["name"]] if "name" in delta["function"] else []
                call["types"] += [delta["type"]] if "type" in delta else []
    return calls


def content_of(events: list[Any]) -> str:
    return "".join(choice["delta"].get("content", "") for event in events[:-1] for choice in event["choices"])


def finish_of(events: list[Any]) -> str:
    (reason,) = [c["finish_reason"] for e in events[:-1] for c in e["choices"] if c["finish_reason"] is not None]
    return str(reason)


REPLIES = {
    "one": (spelled("get_weather", '{"city": "Münster 🙂", "n": {"a": "}"}}'), 1, "", "tool_calls"),
    "empty arguments": (spelled("get_time", "{}"), 1, "", "tool_calls"),
    "two": (spelled("get_weather", '{"city": "a"}') + "\n" + spelled("get_time", "{}"), 2, "", "tool_calls"),
    "prose first": ("Let me see. " + spelled("get_time", "{}"), 1, "Let me see.", "tool_calls"),
    "prose": ("use the <tool here", 0, "use the <tool here", "stop"),
    "unfinished tag": ("see <tool_ca", 0, "see <tool_ca", "stop"),
}


@pytest.mark.parametrize("size", [1, 4, 1000])
@pytest.mark.parametrize("name", REPLIES)
def test_streamed_calls_are_the_whole_ones(app: Any, engine: FakeEngineClient, name: str, size: int) -> None:
    text, num_calls, content, finish = REPLIES[name]
    engine.answer(text, tokens_per_output=size)
    body = chat(tools=[WEATHER, TIME], max_tokens=500)
    whole = call(app, CHAT, body).json["choices"][0]
    assert whole["finish_reason"] == finish
    assert (whole["message"]["content"] or "").strip() == content
    if num_calls and not content:
        assert whole["message"]["content"] is None
    calls = whole["message"].get("tool_calls", [])
    assert len(calls) == num_calls
    events = call(app, CHAT, body | {"stream": True}).events
    streamed = streamed_calls(events)
    assert sorted(streamed) == list(range(num_calls))
    for index, one in enumerate(calls):
        assert one["type"] == "function"
        assert one["id"].startswith("call_")
        assert streamed[index]["arguments"] == one["function"]["arguments"]
        assert json.loads(one["function"]["arguments"]) is not None
        assert streamed[index]["names"] == [one["function"]["name"]]
        assert (len(streamed[index]["ids"]), streamed[index]["types"]) == (1, ["function"])
    assert content_of(events) == (whole["message"]["content"] or "")
    assert finish_of(events) == finish


def test_a_call_that_is_cut_off_ends_by_its_length(app: Any, engine: FakeEngineClient) -> None:
    text = spelled("get_weather", '{"city": "Paris"}')
    engine.answer(text)
    body = chat(tools=[WEATHER], max_tokens=len(ids(text)) - 20)
    whole = call(app, CHAT, body).json["choices"][0]
    assert whole["finish_reason"] == "length"
    assert finish_of(call(app, CHAT, body | {"stream": True}).events) == "length"


def test_only_the_first_call_is_kept_without_parallel_calls(app: Any, engine: FakeEngineClient) -> None:
    engine.answer(spelled("get_weather", '{"city": "a"}') + "\n" + spelled("get_time", "{}"))
    body = chat(tools=[WEATHER, TIME], max_tokens=500, parallel_tool_calls=False)
    assert len(call(app, CHAT, body).json["choices"][0]["message"]["tool_calls"]) == 1
    assert list(streamed_calls(call(app, CHAT, body | {"stream": True}).events)) == [0]


def grammar_of(engine: FakeEngineClient) -> CallGrammar:
    grammar = engine.streams[-1].request.grammar
    assert grammar is not None
    kind, source = grammar
    assert kind == "tool_calls"
    return msgspec.json.decode(source, type=CallGrammar)


def test_required_forces_a_call_of_any_tool_and_named_of_one(app: Any, engine: FakeEngineClient) -> None:
    engine.answer(spelled("get_weather", '{"city": "a"}'))
    tools = {"tools": [WEATHER, TIME], "max_tokens": 500}
    assert call(app, CHAT, chat(**tools, tool_choice="required")).json["choices"][0]["finish_reason"] == "tool_calls"
    grammar = grammar_of(engine)
    assert [tag.begin for tag in grammar.tags] == [
        '<tool_call>\n{"name": "get_weather", "arguments": ',
        '<tool_call>\n{"name": "get_time", "arguments": ',
    ]
    assert grammar.max_calls > 1
    call(app, CHAT, chat(**tools, tool_choice="required", parallel_tool_calls=False))
    assert grammar_of(engine).max_calls == 1
    answer = call(app, CHAT, chat(**tools, tool_choice=NAMED)).json
    assert answer["choices"][0]["finish_reason"] == "stop"  # as OpenAI says it
    assert len(answer["choices"][0]["message"]["tool_calls"]) == 1
    assert (len(grammar_of(engine).tags), grammar_of(engine).max_calls) == (1, 1)


def test_none_says_nothing_of_the_tools(app: Any, engine: FakeEngineClient) -> None:
    engine.answer(spelled("get_time", "{}"))
    body = chat(tools=[WEATHER], tool_choice="none", max_tokens=500)
    answer = call(app, CHAT, body).json
    assert "tool_calls" not in answer["choices"][0]["message"]
    without = chat(max_tokens=500)
    assert call(app, CHAT, without).json["usage"]["prompt_tokens"] == answer["usage"]["prompt_tokens"]
    assert answer["choices"][0]["message"]["content"] == spelled("get_time", "{}")


def test_a_model_whose_template_ignores_tools_is_told_of_them(app: Any, engine: FakeEngineClient) -> None:
    call(app, CHAT, chat(tools=[WEATHER]))
    prompt = "".join(engine_text(engine))
    assert prompt.startswith("system\n")
    assert '"get_weather"' in prompt
    assert "<tool_call>" in prompt


def engine_text(engine: FakeEngineClient) -> str:
    from gateway_fakes import TOKENIZER

    return TOKENIZER.decode(engine.streams[-1].request.prompt_ids, skip_special_tokens=True)


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": NAMED}, "tool_choice"),
        ({"tools": [TIME], "tool_choice": NAMED}, "tool_choice.function.name"),
        ({"tools": [TIME], "tool_choice": {"type": "function"}}, "tool_choice.function"),
        ({"tools": [TIME], "tool_choice": "sometimes"}, "tool_choice"),
        ({"tools": [TIME, TIME]}, "tools[1].function.name"),
        ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "retrieval"}]}, "tools[0].type"),
        (
            {"tools": [TIME], "tool_choice": "required", "response_format": {"type": "json_object"}},
            "tool_choice",
        ),
    ],
)
def test_what_cannot_be_chosen_is_refused(
    app: Any, engine: FakeEngineClient, fields: dict[str, Any], param: str, is_stream: bool
) -> None:
    answer = call(app, CHAT, chat(**fields, stream=is_stream))
    assert answer.status == 400
    assert answer.json["error"]["param"] == param
    assert engine.streams == []


def test_history_with_calls_and_results_is_rendered(app: Any, engine: FakeEngineClient) -> None:
    history = [
        {"role": "user", "content": "time?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "1", "type": "function", "function": {"name": "get_time", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "1", "content": "noon"},
    ]
    assert call(app, CHAT, {"messages": history, "tools": [TIME]}).status == 200


def test_a_function_without_parameters_is_called_with_none(app: Any, engine: FakeEngineClient) -> None:
    engine.answer(spelled("get_time", "{}"))
    call(app, CHAT, chat(tools=[TIME], tool_choice="required", max_tokens=500))
    (tag,) = grammar_of(engine).tags
    assert json.loads(tag.schema) == {"type": "object", "properties": {}, "additionalProperties": False}


def test_a_call_as_a_client_parsed_it_goes_back(app: Any, engine: FakeEngineClient) -> None:
    function = {"name": "get_time", "arguments": "{}", "parsed_arguments": {"x": 1}}
    answer = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "1", "type": "function", "function": function}],
    }
    history = [
        {"role": "user", "content": "time?", "type": "text"},
        answer,
        {"role": "tool", "tool_call_id": "1", "content": "noon"},
    ]
    assert call(app, CHAT, {"messages": history, "tools": [TIME]}).status == 200
    assert "parsed_arguments" not in engine_text(engine)


def test_a_forced_call_has_no_content_streamed_or_not(app: Any, engine: FakeEngineClient) -> None:
    engine.answer(spelled("get_time", "{}"))
    body = chat(tools=[TIME], tool_choice="required", max_tokens=500)
    assert call(app, CHAT, body).json["choices"][0]["message"]["content"] is None
    deltas = [
        choice["delta"] for event in call(app, CHAT, body | {"stream": True}).events[:-1] for choice in event["choices"]
    ]
    assert deltas[0] == {"role": "assistant", "content": None}
    assert all("content" not in delta for delta in deltas[1:])
