import asyncio
from typing import Any

import pytest
from gateway_fakes import CHAT, EOS, FakeEngineClient, byte_id, call, chat, ids

from ipc.messages import FinishReason


def streamed_text(events: list[Any], index: int = 0) -> str:
    return "".join(
        choice["delta"].get("content", "")
        for event in events[:-1]
        for choice in event["choices"]
        if choice["index"] == index
    )


def finish_of(events: list[Any], index: int = 0) -> list[Any]:
    return [
        (choice["finish_reason"], choice.get("stop_reason"))
        for event in events[:-1]
        for choice in event["choices"]
        if choice["index"] == index and choice["finish_reason"] is not None
    ]


def test_whole_response_has_openais_shape(app: Any, engine: FakeEngineClient) -> None:
    engine.answer("Paris.", num_cached=3)
    answer = call(app, CHAT, chat("capital?", model="alias"))
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json"
    body = answer.json
    prompt = [*[1], *ids("user\ncapital?"), 2, *ids("\n"), 1, *ids("assistant\n")]
    assert engine.streams[0].request.prompt_ids == prompt
    assert body["id"].startswith("chatcmpl-")
    assert body["object"] == "chat.completion"
    assert body["model"] == "alias"
    assert body["system_fingerprint"].startswith("octavo-0.1.0-")
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Paris.", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
            "stop_reason": None,
        }
    ]
    assert body["usage"] == {
        "prompt_tokens": len(prompt),
        "completion_tokens": 7,  # the EOS is one of them
        "total_tokens": len(prompt) + 7,
        "prompt_tokens_details": {"cached_tokens": 3},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }
    assert not engine.streams[0].was_aborted


@pytest.mark.parametrize("size", [1, 3, 100])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"n": 3},
        {"stop": ["world"]},
        {"stop": ["o, w", "zzz"], "include_stop_str_in_output": True},
        {"logprobs": True, "top_logprobs": 2, "stop": "wor"},
        {"max_tokens": 4, "logprobs": True},
        {"skip_special_tokens": False},
    ],
)
def test_stream_equals_whole(app: Any, engine: FakeEngineClient, fields: dict[str, Any], size: int) -> None:
    engine.answer("Hello, world", "Grüße 🙂", "ABCDEF", tokens_per_output=size)
    whole = call(app, CHAT, chat(**fields)).json
    options = {"stream": True, "stream_options": {"include_usage": True}}
    answer = call(app, CHAT, chat(**fields, **options))
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    events = answer.events
    assert events[-1] == "[DONE]"
    assert events[-2]["choices"] == []
    assert events[-2]["usage"] == whole["usage"]
    assert len({event["id"] for event in events[:-1]}) == 1
    for choice in whole["choices"]:
        index = choice["index"]
        mine = [c for event in events[:-1] for c in event["choices"] if c["index"] == index]
        assert mine[0]["delta"] == {"role": "assistant", "content": ""}
        assert streamed_text(events, index) == choice["message"]["content"]
        assert finish_of(events, index) == [(choice["finish_reason"], choice["stop_reason"])]
        assert mine[-1]["finish_reason"] is not None
        entries = [entry for c in mine if c["logprobs"] for entry in c["logprobs"]["content"]]
        assert entries == (choice["logprobs"]["content"] if choice["logprobs"] else [])


def test_stop_string_ends_the_choice_in_the_engine(app: Any, engine: FakeEngineClient) -> None:
    engine.answer("one two three", hold_after=9)  # "one two t": what follows never comes
    body = call(app, CHAT, chat(stop=["e tw"], logprobs=True)).json
    choice = body["choices"][0]
    assert choice["message"]["content"] == "on"
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", "e tw")
    assert engine.streams[0].finished == [(0, 6)]
    assert len(choice["logprobs"]["content"]) == 6
    assert body["usage"]["completion_tokens"] == 6


def test_held_back_text_comes_at_the_end(app: Any, engine: FakeEngineClient) -> None:
    engine.answer("abc stopp")
    for fields, finish in (({}, "stop"), ({"max_tokens": 9}, "length")):
        events = call(app, CHAT, chat(stream=True, stop=["stopping"], **fields)).events
        assert streamed_text(events) == "abc stopp"
        assert finish_of(events) == [(finish, None)]


def test_half_characters_are_never_sent(app: Any, engine: FakeEngineClient) -> None:
    engine.answer("a🙂b日")
    events = call(app, CHAT, chat(stream=True)).events
    assert streamed_text(events) == "a🙂b日"
    assert "\ufffd" not in str(events)
    engine.answer([byte_id(0xF0), byte_id(0x9F)])
    assert streamed_text(call(app, CHAT, chat(stream=True, max_tokens=2)).events) == "\ufffd"


def test_special_tokens(app: Any, engine: FakeEngineClient) -> None:
    engine.answer([*ids("a"), 1, *ids("b")])
    assert call(app, CHAT, chat()).json["choices"][0]["message"]["content"] == "ab"
    body = call(app, CHAT, chat(skip_special_tokens=False)).json
    assert body["choices"][0]["message"]["content"] == "a<|im_start|>b"
    fields = {"skip_special_tokens": False, "include_stop_str_in_output": True}
    assert call(app, CHAT, chat(**fields)).json["choices"][0]["message"]["content"] == "a<|im_start|>b<|im_end|>"


def test_logprobs(app: Any, engine: FakeEngineClient) -> None:
    engine.answer("hé", logprob=-0.25)
    body = call(app, CHAT, chat(logprobs=True, top_logprobs=2, max_tokens=3)).json
    content = body["choices"][0]["logprobs"]["content"]
    assert [entry["bytes"] for entry in content] == [[0x68], [0xC3], [0xA9]]
    assert content[0]["token"] == "h"
    assert [entry["logprob"] for entry in content] == [-0.25] * 3
    assert content[0]["top_logprobs"][0] == {"token": "h", "logprob": -0.25, "bytes": [0x68]}
    assert content[0]["top_logprobs"][1]["logprob"] == -9999.0
    body = call(app, CHAT, chat(logprobs=True, max_tokens=3)).json
    assert [entry["top_logprobs"] for entry in body["choices"][0]["logprobs"]["content"]] == [[], [], []]


@pytest.mark.parametrize(
    ("options", "has_null", "has_last", "is_continuous"),
    [
        ("absent", False, False, False),
        (None, False, False, False),
        ({}, False, False, False),
        ({"include_usage": False}, False, False, False),
        ({"include_usage": True}, True, True, False),
        ({"include_usage": True, "continuous_usage_stats": True}, False, True, True),
        ({"continuous_usage_stats": True}, False, False, False),
    ],
)
def test_stream_options(app: Any, options: Any, has_null: bool, has_last: bool, is_continuous: bool) -> None:
    fields = {} if options == "absent" else {"stream_options": options}
    *chunks, done = call(app, CHAT, chat(stream=True, **fields)).events
    assert done == "[DONE]"
    if has_last:
        last = chunks.pop()
        assert last["choices"] == []
        assert last["usage"]["completion_tokens"] == 13
    for chunk in chunks:
        assert len(chunk["choices"]) == 1
        assert ("usage" in chunk) == (has_null or is_continuous)
        assert not has_null or chunk["usage"] is None
    if is_continuous:
        counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
        assert counts == sorted(counts)
        assert counts[-1] == 13
        assert all(chunk["usage"]["prompt_tokens"] == last["usage"]["prompt_tokens"] for chunk in chunks)


def test_parameters_reach_the_engine(app: Any, engine: FakeEngineClient) -> None:
    fields = {
        "temperature": 0.005,
        "top_k": -1,
        "top_p": 0.5,
        "min_p": 0.1,
        "presence_penalty": 2,
        "frequency_penalty": -2,
        "repetition_penalty": 1.5,
        "seed": -1,
        "logit_bias": {"5": -100},
        "stop_token_ids": [7],
        "allowed_token_ids": [5, 6],
        "min_tokens": 2,
        "max_tokens": 3,
        "max_completion_tokens": 5,
        "bad_words": ["ABC"],
        "n": 2,
        "cache_salt": "salt",
    }
    assert call(app, CHAT, chat(**fields)).status == 200
    request = engine.streams[0].request
    params = request.params
    assert (params.temperature, params.top_k, params.top_p, params.min_p) == (0.01, 0, 0.5, 0.1)
    assert (params.presence_penalty, params.frequency_penalty, params.repetition_penalty) == (2, -2, 1.5)
    assert params.seed == 2**64 - 1
    assert params.logit_bias == ((5, -100.0),)
    assert (params.stop_token_ids, params.eos_token_ids, params.allowed_token_ids) == ((7,), (EOS,), (5, 6))
    assert (params.min_tokens, params.max_tokens) == (2, 5)
    assert (ids("ABC")[0],) in params.bad_words
    assert (request.n, request.cache_salt) == (2, "salt")


def test_unseeded_requests_differ_and_eos_can_be_ignored(app: Any, engine: FakeEngineClient) -> None:
    for _ in range(2):
        call(app, CHAT, chat(seed=None, ignore_eos=True))
    first, second = (stream.request.params for stream in engine.streams)
    assert first.seed != second.seed
    assert first.eos_token_ids == ()


def test_max_tokens_defaults_to_the_rest_of_the_context(app: Any, engine: FakeEngineClient) -> None:
    for value in ({}, {"max_tokens": None}):
        call(app, CHAT, chat(**value))
        request = engine.streams[-1].request
        assert request.params.max_tokens == 128 - len(request.prompt_ids)


def test_fields_without_effect_are_accepted(app: Any) -> None:
    fields = {
        "user": "me",
        "metadata": {"a": "b"},
        "service_tier": "auto",
        "store": False,
        "prompt_cache_key": "k",
        "tools": [],
        "tool_choice": "none",
        "response_format": {"type": "text"},
        "use_beam_search": False,
        "functions": None,
        "stop": None,
        "stream": None,
    }
    assert call(app, CHAT, chat(**fields)).status == 200


def test_history_with_parts_and_tool_calls(app: Any, engine: FakeEngineClient) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    call_of_tool = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    silent = {"refusal": None, "annotations": [], "audio": None, "function_call": None}
    history = [
        {"role": "user", "content": parts},
        {"role": "assistant", "content": None, "tool_calls": [call_of_tool], **silent},
        {"role": "tool", "content": "r", "tool_call_id": "1"},
    ]
    assert call(app, CHAT, {"messages": history}).status == 200
    history[0]["content"] = "a\nb"
    history[1]["content"] = ""
    call(app, CHAT, {"messages": history})
    assert engine.streams[0].request.prompt_ids == engine.streams[1].request.prompt_ids


def test_continue_final_message(app: Any, engine: FakeEngineClient) -> None:
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "So"}]
    assert call(app, CHAT, {"messages": messages, "continue_final_message": True}).status == 200
    assert engine.streams[0].request.prompt_ids[-2:] == ids("So")


def test_abort_by_the_engine_is_told(app: Any, engine: FakeEngineClient) -> None:
    engine.answer("abc", finish=FinishReason.ABORT)
    assert call(app, CHAT, chat()).json["choices"][0]["finish_reason"] == "abort"


def test_requests_of_one_loop_do_not_wait_for_each_other(app: Any, engine: FakeEngineClient) -> None:
    from gateway_fakes import AsgiCall

    async def scenario() -> None:
        engine.answer("abc", hold_after=1)
        slow = AsgiCall(app, CHAT, chat(stream=True)).start()
        await slow.until_sent(2)
        engine.answer("def")
        fast = await AsgiCall(app, CHAT, chat()).run()
        assert fast.json["choices"][0]["message"]["content"] == "def"
        slow.disconnect()
        await slow.ended()

    asyncio.run(scenario())


def test_answers_are_taken_back_as_history(app: Any, engine: FakeEngineClient) -> None:
    """As our own response has it, as OpenAI's client hands it on, with every field there is."""
    from openai.types.chat import ChatCompletion, ParsedChatCompletionMessage

    engine.answer("Paris.")
    answer = call(app, CHAT, chat()).json
    own = answer["choices"][0]["message"]
    message = ChatCompletion.model_validate(answer).choices[0].message
    everything = {"annotations": [], "audio": None, "function_call": None, "tool_calls": [], "name": None}
    question = {"role": "user", "content": "x"}
    prompts = []
    for history in (
        {"role": "assistant", "content": "Paris."},
        own,
        own | everything | {"reasoning": None, "reasoning_content": None, "tool_call_id": None},
        message.model_dump(),
        message.model_dump(exclude_unset=True),
        message.to_dict(),
        ParsedChatCompletionMessage.model_validate(message.model_dump()).model_dump(),
        {"role": "assistant", "content": [{"type": "text", "text": "Paris."}]},
        {"role": "assistant", "content": None, "refusal": "Paris."},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "Paris."}]},
    ):
        answer = call(app, CHAT, {"messages": [question, history, question]})
        assert answer.status == 200, (history, answer.json)
        prompts.append(engine.streams[-1].request.prompt_ids)
    assert prompts == [prompts[0]] * len(prompts)


def test_tool_calls_are_taken_back_as_history(app: Any, engine: FakeEngineClient) -> None:
    from openai.types.chat import ChatCompletionMessage

    call_of_tool = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    own = {"role": "assistant", "content": None, "refusal": None, "tool_calls": [call_of_tool], "reasoning": "Hm."}
    streamed = own | {"tool_calls": [{"index": 0, **call_of_tool}]}
    for history in (own, ChatCompletionMessage.model_validate(own).model_dump(), streamed):
        result = {"role": "tool", "tool_call_id": "call_1", "content": "2", "name": "f"}
        answer = call(app, CHAT, {"messages": [{"role": "user", "content": "x"}, history, result]})
        assert answer.status == 200, answer.json


def test_roles(app: Any, engine: FakeEngineClient) -> None:
    for role in ("system", "developer", "user", "assistant", "tool", "function"):
        message = {"role": role, "content": "x", "name": "n"}
        assert call(app, CHAT, {"messages": [message]}).status == 200, role
        shown = "system" if role == "developer" else role  # the template is of before the newer name
        assert engine.streams[-1].request.prompt_ids[1 : 1 + len(shown)] == ids(shown)
