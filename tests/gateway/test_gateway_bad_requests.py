"""Every refusal: a 4xx that names the field, the same with and without ``stream``, and nothing for the engine."""

import json
from typing import Any

import pytest
from gateway_fakes import CHAT, COMP, NUM_IDS, FakeEngineClient, call, chat, comp, ids, make_state

from gateway.app import create_app

BAD_SAMPLING = [
    ("temperature", "NaN", "temperature"),
    ("temperature", "Infinity", "temperature"),
    ("temperature", "-Infinity", "temperature"),
    ("temperature", "-0.5", "temperature"),
    ("temperature", "2.01", "temperature"),
    ("temperature", '"nan"', "temperature"),
    ("temperature", "1e308", "temperature"),
    ("temperature", "1e400", "temperature"),
    ("temperature", "true", "temperature"),
    ("top_p", "0", "top_p"),
    ("top_p", "1.5", "top_p"),
    ("top_p", "NaN", "top_p"),
    ("min_p", "-0.1", "min_p"),
    ("min_p", "1.1", "min_p"),
    ("presence_penalty", "3", "presence_penalty"),
    ("presence_penalty", "-3", "presence_penalty"),
    ("frequency_penalty", "2.5", "frequency_penalty"),
    ("frequency_penalty", "NaN", "frequency_penalty"),
    ("repetition_penalty", "0", "repetition_penalty"),
    ("repetition_penalty", "1e300", "repetition_penalty"),
    ("top_k", "-2", "top_k"),
    ("top_k", "1.5", "top_k"),
    ("top_k", "9223372036854775808", "top_k"),
    ("seed", "9223372036854775808", "seed"),
    ("seed", "-9223372036854775809", "seed"),
    ("seed", "1.5", "seed"),
    ("seed", "1" * 400, "seed"),
    ("n", "0", "n"),
    ("n", "-1", "n"),
    ("n", "100000", "n"),
    ("n", '"2"', "n"),
    ("min_tokens", "-1", "min_tokens"),
    ("min_tokens", "9223372036854775808", "min_tokens"),
    ("max_tokens", "-1", "max_tokens"),
    ("max_tokens", '"5"', "max_tokens"),
    ("max_tokens", "5.5", "max_tokens"),
    ("max_tokens", "9223372036854775808", "max_tokens"),
    ("max_completion_tokens", "-1", "max_completion_tokens"),
    ("stop", '""', "stop"),
    ("stop", '[""]', "stop"),
    ("stop", '["a",""]', "stop"),
    ("stop", "[1]", "stop"),
    ("stop", '["1","2","3","4","5"]', "stop"),
    ("stop", "5", "stop"),
    ("stop_token_ids", f"[{NUM_IDS}]", "stop_token_ids"),
    ("stop_token_ids", "[-1]", "stop_token_ids"),
    ("stop_token_ids", "[true]", "stop_token_ids"),
    ("stop_token_ids", "[9223372036854775808]", "stop_token_ids"),
    ("allowed_token_ids", "[]", "allowed_token_ids"),
    ("allowed_token_ids", f"[{NUM_IDS}]", "allowed_token_ids"),
    ("logit_bias", f'{{"{NUM_IDS}":1}}', "logit_bias"),
    ("logit_bias", '{"-1":1}', "logit_bias"),
    ("logit_bias", '{"abc":1}', "logit_bias"),
    ("logit_bias", '{"1.5":1}', "logit_bias"),
    ("logit_bias", '{"5":NaN}', "logit_bias"),
    ("logit_bias", '{"5":101}', "logit_bias"),
    ("logit_bias", '{"5":"x"}', "logit_bias"),
    ("logit_bias", "[1]", "logit_bias"),
    ("bad_words", '[""]', "bad_words"),
    ("bad_words", "[1]", "bad_words"),
    ("ignore_eos", "1", "ignore_eos"),
    ("stream_options", "5", "stream_options"),
    ("priority", "1", "priority"),
    ("priority", "9223372036854775808", "priority"),
    ("cache_salt", '""', "cache_salt"),
    ("user", "5", "user"),
    ("store", "true", "store"),
    ("use_beam_search", "1", "use_beam_search"),
    ("length_penalty", "0.5", "length_penalty"),
    ("response_format", '{"type":"xml"}', "response_format.type"),
    ("response_format", "5", "response_format"),
    ("structured_outputs", '{"regex":""}', "structured_outputs.regex"),
    ("structured_outputs", '{"speech":"a"}', "structured_outputs.speech"),
    ("prompt_logprobs", "-1", "prompt_logprobs"),
    ("temprature", "1", "temprature"),
    ("guided_json", "{}", "guided_json"),
]

BAD_CHAT = [
    ({"messages": []}, "messages"),
    ({}, "messages"),
    ({"messages": None}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "bot", "content": "a"}]}, "messages[0].role"),
    ({"messages": [{"content": "a"}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0]"),
    (
        {
            "messages": [
                {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://localhost:1"}}]}
            ]
        },
        "messages[0].content[0]",
    ),
    ({"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "x": 1}]}]}, "messages[0].content[0].x"),
    ({"messages": [{"role": "user", "content": "a", "colour": "red"}]}, "messages[0].colour"),
    (chat(max_tokens=0), "max_tokens"),
    (chat(max_completion_tokens=0), "max_completion_tokens"),
    (chat(logprobs=True, top_logprobs=21), "top_logprobs"),
    (chat(logprobs=True, top_logprobs=-1), "top_logprobs"),
    (chat(logprobs=True, top_logprobs=49152), "top_logprobs"),
    (chat(top_logprobs=3), "top_logprobs"),
    (chat(logprobs=5), "logprobs"),
    (chat(tools=[{"type": "function", "function": {"name": ""}}]), "tools[0].function.name"),
    (chat(tools=[], tool_choice="required"), "tool_choice"),
    (chat(echo=True), "echo"),
    (chat(chat_template="{{ 1 }}"), "chat_template"),
    (chat(chat_template_kwargs={"messages": []}), "chat_template_kwargs"),
    (chat(chat_template_kwargs={"chat_template": "x"}), "chat_template_kwargs"),
    (chat(continue_final_message=True, add_generation_prompt=True), "continue_final_message"),
    (chat(model="nope"), "model"),
    (chat(model=""), "model"),
    (chat(min_tokens=5, max_tokens=4), "min_tokens"),
    (chat(prompt="a"), "prompt"),
]

BAD_PROMPTS = [
    "",
    [""],
    [],
    [[]],
    [[], [5]],
    None,
    ["a", [1]],
    ["a", 1],
    [1, [2]],
    [True],
    [1.5],
    [NUM_IDS],
    [-1],
    [2147483648],
    [9223372036854775808],
    [[5], [NUM_IDS]],
    ["a", ""],
    5,
    {},
]

BAD_COMP = [
    *((comp(prompt), "prompt") for prompt in BAD_PROMPTS),
    ({}, "prompt"),
    (comp(logprobs=True), "logprobs"),
    (comp(logprobs=1000000), "logprobs"),
    (comp(logprobs=21), "logprobs"),
    (comp(logprobs=-1), "logprobs"),
    (comp(best_of=65), "best_of"),
    (comp(suffix="x"), "suffix"),
    (comp(messages=[]), "messages"),
    (comp(max_tokens=1, min_tokens=2), "min_tokens"),
    (comp(min_tokens=17), "min_tokens"),
    (comp("\n" * 3, stream_options={"surprise": 1}, stream=True), "stream_options.surprise"),
]

BAD_BODIES = [b"[]", b"null", b"123", b"{", b"", b"[" * 100_000, b'{"messages":' + b"[" * 100_000, b"\xff", b"{} x"]


def check_error(answer: Any, status: int, param: str | None) -> None:
    assert answer.status == status
    assert answer.headers["content-type"] == "application/json"
    assert set(answer.json) == {"error"}
    error = answer.json["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    assert 0 < len(error["message"]) < 1100
    assert "Traceback" not in error["message"]


def check_both_modes(app: Any, engine: FakeEngineClient, path: str, body: bytes, param: str | None) -> None:
    status = 404 if param == "model" else 400
    answer = call(app, path, body)
    check_error(answer, status, param)
    if body.startswith(b"{") and b'"stream"' not in body and len(body) > 2:
        streamed = call(app, path, b'{"stream":true,' + body[1:])
        assert (streamed.status, streamed.body) == (answer.status, answer.body)
    assert engine.streams == []


@pytest.mark.parametrize(("field", "value", "param"), BAD_SAMPLING)
@pytest.mark.parametrize("path", [CHAT, COMP])
def test_sampling(app: Any, engine: FakeEngineClient, path: str, field: str, value: str, param: str) -> None:
    body = chat() if path == CHAT else comp()
    body.pop("temperature")
    raw = json.dumps(body)[:-1] + f',"{field}":{value}}}'
    check_both_modes(app, engine, path, raw.encode(), param)


@pytest.mark.parametrize(("body", "param"), BAD_CHAT)
def test_chat(app: Any, engine: FakeEngineClient, body: dict[str, Any], param: str) -> None:
    answer = call(app, CHAT, body)
    if param == "messages[0].content[0]":
        param = answer.json["error"]["param"]
        assert param in ("messages[0].content[0]", "messages[0].content[0].text", "messages[0].content[0].type")
    check_both_modes(app, engine, CHAT, json.dumps(body).encode(), param)


@pytest.mark.parametrize(("body", "param"), BAD_COMP)
def test_completions(app: Any, engine: FakeEngineClient, body: dict[str, Any], param: str) -> None:
    check_both_modes(app, engine, COMP, json.dumps(body).encode(), param)


@pytest.mark.parametrize("body", BAD_BODIES, ids=range(len(BAD_BODIES)))
@pytest.mark.parametrize("path", [CHAT, COMP, "/tokenize", "/detokenize"])
def test_bodies(app: Any, engine: FakeEngineClient, path: str, body: bytes) -> None:
    answer = call(app, path, body)
    check_error(answer, 400, "messages" if path == CHAT and body.startswith(b'{"m') else answer.json["error"]["param"])
    assert engine.streams == []


def test_lone_surrogate(app: Any, engine: FakeEngineClient) -> None:
    body = b'{"messages":[{"role":"user","content":"cut \\ud83d"}]}'
    check_both_modes(app, engine, CHAT, body, None)
    check_both_modes(app, engine, COMP, b'{"prompt":"cut \\ud83d"}', None)


def test_stream_options_without_stream(app: Any, engine: FakeEngineClient) -> None:
    for path, body in ((CHAT, chat()), (COMP, comp())):
        check_error(call(app, path, body | {"stream_options": {"include_usage": True}}), 400, "stream_options")
    assert engine.streams == []


@pytest.mark.parametrize("length", [127, 128, 129])
def test_context_limit(app: Any, engine: FakeEngineClient, length: int) -> None:
    engine.answer("x" * 200)
    answer = call(app, COMP, comp([5] * length, max_tokens=1))
    if length == 127:
        assert answer.status == 200
        assert answer.json["choices"][0]["finish_reason"] == "length"
        assert answer.json["usage"]["completion_tokens"] == 1
        return
    check_error(answer, 400, "prompt")
    error = answer.json["error"]
    assert error["code"] == "context_length_exceeded"
    assert "128" in error["message"]
    assert str(length) in error["message"]


def test_explicit_limit_is_refused_and_the_default_is_cut(app: Any, engine: FakeEngineClient) -> None:
    engine.answer("x" * 200)
    check_error(call(app, COMP, comp([5] * 118, max_tokens=50)), 400, "max_tokens")
    body = call(app, COMP, comp([5] * 118)).json
    assert (body["usage"]["completion_tokens"], body["choices"][0]["finish_reason"]) == (10, "length")
    overhead = len(ids("user\n")) + len(ids("\n")) + len(ids("assistant\n")) + 3
    body = call(app, CHAT, chat("x" * (118 - overhead))).json
    assert body["usage"] | {"prompt_tokens_details": 0} == {
        "prompt_tokens": 118,
        "completion_tokens": 10,
        "total_tokens": 128,
        "prompt_tokens_details": 0,
        "completion_tokens_details": {"reasoning_tokens": 0},
    }
    answer = call(app, CHAT, chat("x" * (118 - overhead), max_completion_tokens=11))
    check_error(answer, 400, "max_completion_tokens")


def test_requests_larger_than_the_kv_pool() -> None:
    engine = FakeEngineClient(num_blocks=4)  # 64 tokens, and the last token needs no place
    engine.answer("x" * 200)
    app = create_app(make_state(engine))
    for body in (comp([5] * 65, max_tokens=1), comp([5] * 40, max_tokens=26)):
        answer = call(app, COMP, body)
        assert answer.status == 400
        assert answer.json["error"]["code"] == "kv_cache_capacity_exceeded"
        assert "65" in answer.json["error"]["message"]
    assert engine.streams == []
    assert call(app, COMP, comp([5] * 64, max_tokens=1)).status == 200
    assert call(app, COMP, comp([5] * 60)).json["usage"]["completion_tokens"] == 5


def test_hopeless_text_is_refused_before_it_is_tokenized(engine: FakeEngineClient) -> None:
    class NoTokenizer:
        """Only the bound works."""

        def min_tokens(self, text: str) -> int:
            return len(text) // 3

    app = create_app(make_state(engine, tokenizer=NoTokenizer()))
    for path, body in ((COMP, comp("x" * 5_000_000)), (CHAT, chat("x" * 5_000_000)), ("/tokenize", None)):
        answer = call(app, path, body or {"prompt": "x" * 5_000_000})
        assert answer.status == 400
        assert answer.json["error"]["code"] == "context_length_exceeded"


def test_border_values_are_accepted(app: Any) -> None:
    for fields in (
        {"temperature": 0, "top_p": 1, "top_k": -1, "presence_penalty": 2, "frequency_penalty": -2, "min_p": 0},
        {"temperature": 2, "top_p": 1e-6, "top_k": 0, "presence_penalty": -2, "frequency_penalty": 2, "min_p": 1},
        {"seed": 2**63 - 1, "top_k": 2**63 - 1},
        {"seed": -(2**63)},
        {"stop": None, "stop_token_ids": None, "logit_bias": None, "max_tokens": None},
        {"stop": [], "stop_token_ids": [], "logit_bias": {}, "bad_words": []},
        {"logit_bias": {"0": 100, str(NUM_IDS - 1): -100}, "stop_token_ids": [0, NUM_IDS - 1]},
    ):
        assert call(app, CHAT, chat(**fields)).status == 200, fields
        assert call(app, COMP, comp(**fields)).status == 200, fields


def test_one_bad_prompt_fails_the_whole_list(app: Any, engine: FakeEngineClient) -> None:
    check_error(call(app, COMP, comp([[5], [5] * 200], max_tokens=1)), 400, "prompt")
    assert engine.streams == []
