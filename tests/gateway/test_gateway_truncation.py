"""truncate_prompt_tokens and truncation_side."""

from typing import Any

import pytest
from gateway_fakes import CHAT, COMP, MAX_MODEL_LEN, FakeEngineClient, call, chat, comp, ids, make_state

from gateway.app import create_app

CHAT_PROMPT = [1, *ids("user\nhi"), 2, *ids("\n"), 1, *ids("assistant\n")]


def sent(engine: FakeEngineClient) -> list[int]:
    return engine.streams[-1].request.prompt_ids


@pytest.mark.parametrize("prompt", ["abcdef", ids("abcdef")])
@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({"truncate_prompt_tokens": 2}, "ef"),
        ({"truncate_prompt_tokens": 2, "truncation_side": None}, "ef"),
        ({"truncate_prompt_tokens": 2, "truncation_side": "left"}, "ef"),
        ({"truncate_prompt_tokens": 2, "truncation_side": "right"}, "ab"),
        ({"truncate_prompt_tokens": 1}, "f"),
        ({"truncate_prompt_tokens": 6}, "abcdef"),
        ({"truncate_prompt_tokens": 7, "truncation_side": "right"}, "abcdef"),
        ({"truncate_prompt_tokens": MAX_MODEL_LEN}, "abcdef"),
        ({"truncate_prompt_tokens": -1}, "abcdef"),
        ({"truncate_prompt_tokens": None}, "abcdef"),
    ],
)
def test_completions(app: Any, engine: FakeEngineClient, prompt: Any, fields: dict[str, Any], kept: str) -> None:
    body = comp(prompt, echo=True, max_tokens=1, logprobs=0, **fields)
    for stream in ({}, {"stream": True}):
        answer = call(app, COMP, body | stream)
        assert sent(engine) == ids(kept)
        choice = answer.events[0]["choices"][0] if stream else answer.json["choices"][0]
        assert choice["text"] == kept + ("" if stream else "H")
        assert choice["logprobs"]["text_offset"] == list(range(len(kept) + (0 if stream else 1)))
        if not stream:
            assert answer.json["usage"]["prompt_tokens"] == len(kept)


def test_every_prompt_is_truncated(app: Any, engine: FakeEngineClient) -> None:
    body = call(app, COMP, comp(["abc", "d", "efgh"], truncate_prompt_tokens=2, echo=True, max_tokens=0)).json
    assert [choice["text"] for choice in body["choices"]] == ["bc", "d", "gh"]
    assert [stream.request.prompt_ids for stream in engine.streams] == [ids("bc"), ids("d"), ids("gh")]


@pytest.mark.parametrize(("side", "kept"), [("left", CHAT_PROMPT[-5:]), ("right", CHAT_PROMPT[:5])])
def test_chat(app: Any, engine: FakeEngineClient, side: str, kept: list[int]) -> None:
    for stream in (False, True):
        body = chat(truncate_prompt_tokens=5, truncation_side=side, return_token_ids=True, stream=stream)
        answer = call(app, CHAT, body)
        assert sent(engine) == kept
        assert (answer.events[0] if stream else answer.json)["prompt_token_ids"] == kept


def test_all_that_max_tokens_leaves(app: Any, engine: FakeEngineClient) -> None:
    long = "x" * 300
    for path, body, num_left in (
        (COMP, comp(long, max_tokens=20), 20),
        (COMP, comp(long, max_completion_tokens=20, max_tokens=5), 20),
        (COMP, comp(long), 16),
        (COMP, comp(ids(long), max_tokens=1), 1),
        (COMP, comp(long, max_tokens=0, echo=True), 0),
        (CHAT, chat(long, max_tokens=20), 20),
        (CHAT, chat(long), 1),
    ):
        assert call(app, path, body | {"truncate_prompt_tokens": -1}).status == 200
        assert len(sent(engine)) == MAX_MODEL_LEN - num_left
    answer = call(app, COMP, comp(long, max_tokens=MAX_MODEL_LEN, truncate_prompt_tokens=-1))
    assert (answer.status, answer.json["error"]["param"]) == (400, "max_tokens")


def test_a_small_kv_pool_is_the_context() -> None:
    engine = FakeEngineClient(num_blocks=4)
    app = create_app(make_state(engine))
    assert call(app, COMP, comp("x" * 300, max_tokens=5, truncate_prompt_tokens=-1)).status == 200
    assert len(sent(engine)) == 60


def test_texts_of_any_length_are_taken(app: Any, engine: FakeEngineClient) -> None:
    """Without truncation they are refused before they are tokenized."""
    long = "ABC" * 20_000
    for path, body in ((COMP, comp(long)), (COMP, comp(ids("x") * 1000)), (CHAT, chat(long))):
        assert call(app, path, body).json["error"]["code"] == "context_length_exceeded"
        assert call(app, path, body | {"truncate_prompt_tokens": 100}).status == 200
        assert len(sent(engine)) == 100


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": MAX_MODEL_LEN + 1}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": 2**63}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": 1.5}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": "5"}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": 5, "truncation_side": "middle"}, "truncation_side"),
        ({"truncation_side": "left"}, "truncation_side"),
        ({"truncate_prompt_tokens": None, "truncation_side": "right"}, "truncation_side"),
    ],
)
def test_refusals(app: Any, engine: FakeEngineClient, fields: dict[str, Any], param: str) -> None:
    for path, body in ((COMP, comp()), (CHAT, chat())):
        for stream in (False, True):
            answer = call(app, path, body | fields | {"stream": stream})
            assert (answer.status, answer.json["error"]["param"]) == (400, param)
    assert engine.streams == []
