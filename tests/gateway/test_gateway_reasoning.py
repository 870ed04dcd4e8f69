"""Reasoning over HTTP: apart from the answer, counted, and the same streamed."""

from typing import Any

import pytest
from gateway_fakes import CHAT, TEMPLATE, TOKENIZER, FakeEngineClient, call, chat, ids, make_state
from msgspec import json, structs

from gateway.app import create_app
from gateway.chat_parsers import ChatParsers
from gateway.text.chat_template import ChatTemplate
from ipc.grammar import ReasonedGrammar

TOOL = {"type": "function", "function": {"name": "f"}}
TEXT = "<think>\nShort, I think.\n</think>\n\nParis."


def app_of(engine: FakeEngineClient, template: str = TEMPLATE, parser: str = "think") -> Any:
    chat_template = ChatTemplate({"default": template}, TOKENIZER)
    parsers = ChatParsers.choose("auto", parser, chat_template)
    return create_app(make_state(engine, chat_template=chat_template, chat_parsers=parsers))


def streamed(events: list[Any], name: str) -> str:
    return "".join(choice["delta"].get(name, "") for event in events[:-1] for choice in event["choices"])


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_streamed_reasoning_is_the_whole_one(engine: FakeEngineClient, size: int) -> None:
    app = app_of(engine)
    engine.answer(TEXT, tokens_per_output=size)
    whole = call(app, CHAT, chat(max_tokens=90)).json
    message = whole["choices"][0]["message"]
    assert (message["reasoning"], message["content"]) == ("Short, I think.", "Paris.")
    count = len(ids(TEXT[: TEXT.index("</think>") + len("</think>")]))
    assert whole["usage"]["completion_tokens_details"] == {"reasoning_tokens": count}
    options = {"stream": True, "stream_options": {"include_usage": True}}
    events = call(app, CHAT, chat(max_tokens=90, **options)).events
    assert (streamed(events, "reasoning"), streamed(events, "content")) == ("Short, I think.", "Paris.")
    assert events[-2]["usage"] == whole["usage"]


def test_reasoning_that_is_not_wanted_is_left_out_and_counted(engine: FakeEngineClient) -> None:
    app = app_of(engine)
    engine.answer(TEXT)
    answer = call(app, CHAT, chat(max_tokens=90, include_reasoning=False)).json
    assert "reasoning" not in answer["choices"][0]["message"]
    assert answer["choices"][0]["message"]["content"] == "Paris."
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] > 0
    events = call(app, CHAT, chat(max_tokens=90, include_reasoning=False, stream=True)).events
    assert (streamed(events, "reasoning"), streamed(events, "content")) == ("", "Paris.")


def test_a_prompt_that_ends_with_the_tag_begins_with_reasoning(engine: FakeEngineClient) -> None:
    template = TEMPLATE.replace("assistant\n", "assistant\n<think>\n")
    app = app_of(engine, template)
    engine.answer("so\n</think>\nyes")
    answer = call(app, CHAT, chat(max_tokens=90)).json
    assert (answer["choices"][0]["message"]["reasoning"], answer["choices"][0]["message"]["content"]) == ("so", "yes")


def test_reasoning_that_is_cut_off_is_all_reasoning(engine: FakeEngineClient) -> None:
    app = app_of(engine)
    engine.answer(TEXT)
    answer = call(app, CHAT, chat(max_tokens=12)).json
    assert answer["choices"][0]["message"]["content"] == ""
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": 12}


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize(
    "fields", [{"structured_outputs": {"choice": ["yes", "no"]}}, {"tools": [TOOL], "tool_choice": "required"}]
)
def test_a_grammar_begins_behind_the_reasoning(engine: FakeEngineClient, fields: dict[str, Any], is_open: bool) -> None:
    app = app_of(engine, TEMPLATE.replace("assistant\n", "assistant\n<think>\n") if is_open else TEMPLATE)
    engine._ready = structs.replace(engine._ready, max_model_len=8192, num_blocks=4096)
    answer = "yes" if "tools" not in fields else '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    engine.answer(("" if is_open else "<think>") + "let me see</think>\n" + answer)
    message = call(app, CHAT, chat(max_tokens=200, **fields)).json["choices"][0]["message"]
    assert message["reasoning"] == "let me see"
    assert message["content"] == "yes" if "tools" not in fields else message["tool_calls"][0]["function"]["name"] == "f"
    kind, source = engine.streams[-1].request.grammar or ("", "")
    assert kind == "reasoned"
    reasoned = json.decode(source, type=ReasonedGrammar)
    assert (reasoned.kind, reasoned.is_open) == ("choice" if "tools" not in fields else "tool_calls", is_open)
    assert (reasoned.opening, reasoned.closing) == ("<think>", "</think>")


def test_without_a_parser_tags_are_text(engine: FakeEngineClient) -> None:
    app = app_of(engine, parser="none")
    engine.answer(TEXT)
    message = call(app, CHAT, chat(max_tokens=90)).json["choices"][0]["message"]
    assert message["content"] == TEXT
    assert "reasoning" not in message


@pytest.mark.parametrize(
    ("template", "effort", "status"),
    [
        (TEMPLATE, "low", 400),
        (TEMPLATE, "none", 200),
        (TEMPLATE + "{{ reasoning_effort }}", "low", 200),
        (TEMPLATE + "{% if enable_thinking %}!{% endif %}", "low", 200),
    ],
)
def test_reasoning_effort_is_for_templates_that_look_at_it(
    engine: FakeEngineClient, template: str, effort: str, status: int
) -> None:
    answer = call(app_of(engine, template), CHAT, chat(reasoning_effort=effort))
    assert answer.status == status
    if status == 400:
        assert answer.json["error"]["param"] == "reasoning_effort"
