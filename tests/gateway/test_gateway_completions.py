from typing import Any

import pytest
from gateway_fakes import COMP, TOKENIZER, FakeEngineClient, Script, call, comp, ids


def joined(events: list[Any], index: int) -> dict[str, Any]:
    """The choice that the chunks of a stream make."""
    mine = [choice for event in events[:-1] for choice in event["choices"] if choice["index"] == index]
    logprobs: dict[str, list[Any]] = {}
    for choice in mine:
        for name, values in (choice["logprobs"] or {}).items():
            logprobs.setdefault(name, []).extend(values or [])
    return {
        "index": index,
        "text": "".join(choice["text"] for choice in mine),
        "logprobs": logprobs or None,
        "finish_reason": mine[-1]["finish_reason"],
        "stop_reason": mine[-1]["stop_reason"],
    }


@pytest.mark.parametrize("size", [1, 4, 100])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"n": 2},
        {"prompt": ["first", "second"], "n": 2},
        {"prompt": [[5, 6], [7]], "stop": ["world"]},
        {"logprobs": 2},
        {"logprobs": 1, "echo": True},
        {"logprobs": 1, "echo": True, "prompt": ["Grüße 🙂", "b"], "n": 2},
        {"echo": True},
        {"echo": True, "logprobs": 1, "max_tokens": 0},
        {"max_tokens": 0},
        {"max_tokens": 5, "stop": ["lo"], "include_stop_str_in_output": True, "logprobs": 1},
    ],
)
def test_stream_equals_whole(app: Any, engine: FakeEngineClient, fields: dict[str, Any], size: int) -> None:
    engine.answer("Hello, world", "né 🙂", tokens_per_output=size)
    body = comp(**({"max_tokens": 30} | fields))
    whole = call(app, COMP, body).json
    answer = call(app, COMP, body | {"stream": True, "stream_options": {"include_usage": True}})
    events = answer.events
    assert events[-1] == "[DONE]"
    assert events[-2]["usage"] == whole["usage"]
    assert all(event["object"] == "text_completion" for event in events[:-1])
    for choice in whole["choices"]:
        assert joined(events, choice["index"]) == choice


def test_the_four_shapes_of_prompt(app: Any, engine: FakeEngineClient) -> None:
    engine.script = lambda request: Script([request.prompt_ids])
    for prompt, expected in (
        ("ab", ["ab"]),
        (["ab", "cd"], ["ab", "cd"]),
        (ids("ab"), ["ab"]),
        ([ids("ab"), ids("cd")], ["ab", "cd"]),
    ):
        body = call(app, COMP, comp(prompt)).json
        assert [choice["text"] for choice in body["choices"]] == expected
        assert [choice["index"] for choice in body["choices"]] == list(range(len(expected)))
        assert body["usage"]["prompt_tokens"] == 2 * len(expected)
        assert body["id"].startswith("cmpl-")


def test_default_of_16_tokens(app: Any, engine: FakeEngineClient) -> None:
    engine.answer("x" * 100)
    for fields, count in (
        ({}, 16),
        ({"max_tokens": None}, 16),
        ({"max_tokens": 3}, 3),
        ({"max_completion_tokens": 20}, 20),
        ({"max_tokens": 3, "max_completion_tokens": 20}, 20),
        ({"max_tokens": 0}, 0),
    ):
        body = call(app, COMP, comp(**fields)).json
        assert body["usage"]["completion_tokens"] == count
        assert body["choices"][0]["text"] == "x" * count
        assert body["choices"][0]["finish_reason"] == "length"


def test_scoring_a_prompt(app: Any, engine: FakeEngineClient) -> None:
    """What evaluation harnesses send."""
    prompt = "Paris ABC DEF é"
    for sent in (prompt, ids(prompt)):
        body = call(app, COMP, comp(sent, echo=True, logprobs=1, max_tokens=0)).json
        choice = body["choices"][0]
        logprobs = choice["logprobs"]
        count = body["usage"]["prompt_tokens"]
        assert choice["text"] == prompt
        assert (body["usage"]["completion_tokens"], choice["finish_reason"]) == (0, "length")
        assert {len(values) for values in logprobs.values()} == {count} == {len(ids(prompt))}
        assert logprobs["token_logprobs"] == [None, *([-0.5] * (count - 1))]
        assert logprobs["top_logprobs"][0] is None
        assert logprobs["top_logprobs"][1] == {"a": -0.5}
        for token, offset in list(zip(logprobs["tokens"], logprobs["text_offset"], strict=True))[:-2]:
            assert prompt[offset : offset + len(token)] == token
        assert logprobs["text_offset"][-2:] == [len(prompt) - 1] * 2  # both bytes of one character
    body = call(app, COMP, comp(prompt, echo=True, logprobs=1, max_tokens=1)).json
    assert len(body["choices"][0]["logprobs"]["tokens"]) == len(ids(prompt)) + 1
    assert body["choices"][0]["logprobs"]["text_offset"][-1] == len(prompt)


def test_offsets_index_the_text(app: Any, engine: FakeEngineClient) -> None:
    engine.answer("xABCyDEF")
    choice = call(app, COMP, comp("ABé", echo=True, logprobs=0)).json["choices"][0]
    logprobs = choice["logprobs"]
    assert choice["text"] == "ABéxABCyDEF"
    assert logprobs["tokens"][-6:] == ["\ufffd", "x", "ABC", "y", "DEF", "<|im_end|>"]
    assert logprobs["text_offset"] == [0, 2, 2, 3, 4, 7, 8, 11]
    assert logprobs["top_logprobs"] is None


def test_alternatives_include_the_drawn_token_and_are_finite(app: Any, engine: FakeEngineClient) -> None:
    engine.answer("q")
    logprobs = call(app, COMP, comp(logprobs=3, max_tokens=1)).json["choices"][0]["logprobs"]
    (top,) = logprobs["top_logprobs"]
    assert list(top.items())[0] == ("q", -0.5)
    assert list(top.values()) == sorted(top.values(), reverse=True)
    assert min(top.values()) == -9999.0


def test_prompt_text_is_echoed_as_it_was_sent(app: Any) -> None:
    for sent, text in (("a<|im_end|>b", "a<|im_end|>b"), ([*ids("a"), 2], "a<|im_end|>")):
        choice = call(app, COMP, comp(sent, echo=True, max_tokens=0)).json["choices"][0]
        assert choice["text"] == text


def test_long_prompts_are_tokenized_in_the_executor(app: Any, engine: FakeEngineClient, state: Any) -> None:
    text = "ABC" * 100
    sent = call(app, COMP, comp([text] * 40, max_tokens=1))  # 12,000 characters together
    assert sent.status == 200
    assert [stream.request.prompt_ids for stream in engine.streams] == [
        TOKENIZER.encode(text, add_special_tokens=False)
    ] * 40
    assert state.executor._threads
