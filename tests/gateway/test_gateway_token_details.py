"""What a response tells of tokens and prompts only where it was asked to."""

from typing import Any

import pytest
from gateway_fakes import CHAT, COMP, EOS, TOKENIZER, FakeEngineClient, Script, byte_id, call, chat, comp, ids

from gateway.generation import Generation
from gateway.logprobs import unpack_ranked
from gateway.schema.prompt_logprobs import PromptLogprob, format_prompt_logprobs
from ipc.codec import pack_floats, pack_ids
from ipc.messages import TokenLogprobs

CHAT_PROMPT = [1, *ids("user\nhi"), 2, *ids("\n"), 1, *ids("assistant\n")]


def entry(token_id: int, logprob: float = -0.5, rank: int = 1) -> dict[str, Any]:
    return {"logprob": logprob, "rank": rank, "decoded_token": TOKENIZER.token_text(token_id)}


def test_prompt_logprobs_of_completions(app: Any, engine: FakeEngineClient) -> None:
    body = call(app, COMP, comp(["abc", "d"], n=2, prompt_logprobs=1, max_tokens=1)).json
    assert [choice["prompt_logprobs"] for choice in body["choices"]] == [
        *([[None, {str(ids("b")[0]): entry(ids("b")[0])}, {str(ids("c")[0]): entry(ids("c")[0])}]] * 2),
        *([[None]] * 2),
    ]
    assert [stream.request.num_prompt_logprobs for stream in engine.streams] == [1, 1]
    assert "prompt_logprobs" not in body
    assert body["choices"][0]["logprobs"] is None


def test_prompt_logprobs_of_chat(app: Any, engine: FakeEngineClient) -> None:
    body = call(app, CHAT, chat(prompt_logprobs=2, n=2)).json
    shown = body["prompt_logprobs"]
    assert len(shown) == len(CHAT_PROMPT)
    assert shown[0] is None
    for token_id, position in zip(CHAT_PROMPT[1:], shown[1:], strict=True):
        first, second = position
        assert (first, position[first]) == (str(token_id), entry(token_id))
        assert position[second] == entry(int(second), -9999.0, 2)
    assert all("prompt_logprobs" not in choice for choice in body["choices"])


def test_zero_is_the_prompts_own_tokens(app: Any) -> None:
    body = call(app, COMP, comp("ab", prompt_logprobs=0, max_tokens=0)).json
    assert body["choices"][0]["prompt_logprobs"] == [None, {str(ids("b")[0]): entry(ids("b")[0])}]


def test_echo_and_prompt_logprobs_ask_for_what_each_shows(app: Any, engine: FakeEngineClient) -> None:
    for logprobs, prompt_logprobs, asked in ((3, 1, 3), (1, 3, 3), (0, 2, 2), (2, None, 2), (None, 2, 2)):
        fields = {"logprobs": logprobs, "prompt_logprobs": prompt_logprobs, "max_tokens": 0}
        choice = call(app, COMP, comp("ab", echo=True, **fields)).json["choices"][0]
        assert engine.streams[-1].request.num_prompt_logprobs == asked
        assert ("prompt_logprobs" in choice) == (prompt_logprobs is not None)
        if prompt_logprobs is not None:
            assert len(choice["prompt_logprobs"][1]) == prompt_logprobs
        if logprobs:
            assert len(choice["logprobs"]["top_logprobs"][1]) == logprobs


def test_ranks_and_alternatives() -> None:
    """The prompt's own token keeps the rank that the engine counted; rows without a token are left out."""
    own, other, unknown = ids("a")[0], ids("b")[0], 10**6
    packed = TokenLogprobs(
        3, pack_floats([-7.5]), pack_ids([40]), pack_ids([other, unknown, own]), pack_floats([-1, -2, -3])
    )
    (found,) = unpack_ranked(packed, [own])
    assert format_prompt_logprobs(TOKENIZER, [found], 3) == [
        None,
        {str(own): PromptLogprob(-7.5, 40, "a"), str(other): PromptLogprob(-1.0, 1, "b")},
    ]
    assert format_prompt_logprobs(TOKENIZER, [], 3) == [None]


def test_prompt_logprobs_that_never_came_are_null(
    app: Any, engine: FakeEngineClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine aborted the request half-way through its prompt."""
    convert = Generation._convert

    def forget(self: Generation, outputs: Any) -> Any:
        for output in outputs:
            output.prompt_logprobs = None
        return convert(self, outputs)

    monkeypatch.setattr(Generation, "_convert", forget)
    assert call(app, CHAT, chat(prompt_logprobs=1)).json["prompt_logprobs"] is None


@pytest.mark.parametrize("value", [-1, 21, 10**30])
@pytest.mark.parametrize("is_stream", [False, True])
def test_prompt_logprobs_out_of_range(app: Any, engine: FakeEngineClient, value: int, is_stream: bool) -> None:
    for path, body in ((CHAT, chat()), (COMP, comp()), (COMP, comp(echo=True, logprobs=2))):
        answer = call(app, path, body | {"prompt_logprobs": value, "stream": is_stream})
        assert (answer.status, answer.json["error"]["param"]) == (400, "prompt_logprobs")
    assert engine.streams == []


def test_prompt_logprobs_do_not_go_with_stream(app: Any, engine: FakeEngineClient) -> None:
    for path, body in ((CHAT, chat()), (COMP, comp())):
        answer = call(app, path, body | {"prompt_logprobs": 0, "stream": True})
        assert (answer.status, answer.json["error"]["param"]) == (400, "prompt_logprobs")
        assert "stream" in answer.json["error"]["message"]
    assert engine.streams == []


def test_long_prompt_logprobs_are_written_in_the_executor(app: Any, engine: FakeEngineClient, state: Any) -> None:
    assert call(app, COMP, comp("ab" * 50, prompt_logprobs=20, max_tokens=1)).status == 200
    assert not state.executor._threads
    assert call(app, COMP, comp(["ab" * 50] * 3, prompt_logprobs=20, max_tokens=1)).status == 200
    assert state.executor._threads


# ---- token ids


@pytest.mark.parametrize("size", [1, 3, 100])
@pytest.mark.parametrize("fields", [{}, {"n": 2}, {"stop": ["wor"]}, {"max_tokens": 4}, {"logprobs": True}])
def test_token_ids_of_chat(app: Any, engine: FakeEngineClient, fields: dict[str, Any], size: int) -> None:
    engine.answer("Hello, world", "né 🙂", tokens_per_output=size)
    body = chat(return_token_ids=True, **fields)
    whole = call(app, CHAT, body).json
    assert whole["prompt_token_ids"] == CHAT_PROMPT
    if "stop" not in fields and "max_tokens" not in fields:
        assert whole["choices"][0]["token_ids"] == [*ids("Hello, world"), EOS]
    assert sum(len(choice["token_ids"]) for choice in whole["choices"]) == whole["usage"]["completion_tokens"]
    first, *events = call(app, CHAT, body | {"stream": True}).events[:-1]
    assert first["prompt_token_ids"] == CHAT_PROMPT
    assert first["choices"][0]["delta"]["role"] == "assistant"
    assert all("prompt_token_ids" not in event for event in events)
    for choice in whole["choices"]:
        mine = [one for event in events for one in event["choices"] if one["index"] == choice["index"]]
        assert [token_id for one in mine for token_id in one.get("token_ids", ())] == choice["token_ids"]


@pytest.mark.parametrize("size", [1, 3, 100])
@pytest.mark.parametrize("echo", [False, True])
def test_token_ids_of_completions(app: Any, engine: FakeEngineClient, echo: bool, size: int) -> None:
    engine.answer("Hello, world", "né 🙂", tokens_per_output=size)
    body = comp(["ab", "cd"], n=2, echo=echo, return_token_ids=True, max_tokens=5, logprobs=0)
    whole = call(app, COMP, body).json
    assert [choice["prompt_token_ids"] for choice in whole["choices"]] == [ids("ab")] * 2 + [ids("cd")] * 2
    assert [choice["token_ids"] for choice in whole["choices"]] == [ids("Hello"), ids("né 🙂")[:5]] * 2
    events = call(app, COMP, body | {"stream": True}).events[:-1]
    for choice in whole["choices"]:
        first, *mine = [one for event in events for one in event["choices"] if one["index"] == choice["index"]]
        assert first["prompt_token_ids"] == choice["prompt_token_ids"]
        assert first["text"] == ((["ab", "cd"][choice["index"] // 2]) if echo else "")
        assert all("prompt_token_ids" not in one for one in mine)
        assert [token_id for one in mine for token_id in one["token_ids"]] == choice["token_ids"]
        assert first["text"] + "".join(one["text"] for one in mine) == choice["text"]


def test_tokens_without_text_have_their_own_chunks(app: Any, engine: FakeEngineClient) -> None:
    engine.answer([byte_id(0xF0), byte_id(0x9F), byte_id(0x99), byte_id(0x82)])
    for path, body in ((CHAT, chat()), (COMP, comp())):
        events = call(app, path, body | {"stream": True, "return_token_ids": True}).events[1:-1]
        assert [event["choices"][0]["token_ids"] for event in events] == [
            [byte_id(0xF0)],
            [byte_id(0x9F)],
            [byte_id(0x99)],
            [byte_id(0x82)],
            [EOS],
        ]


def test_usage_stays_with_the_first_chunk(app: Any) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = chat(return_token_ids=True, return_prompt_text=True, stream=True, stream_options=options)
    first = call(app, CHAT, body).events[0]
    assert first["usage"]["prompt_tokens"] == len(CHAT_PROMPT)
    assert first["prompt_token_ids"] == CHAT_PROMPT
    first = call(app, CHAT, body | {"stream_options": {"include_usage": True}}).events[0]
    assert first["usage"] is None


def test_prompt_text(app: Any) -> None:
    text = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert call(app, CHAT, chat(return_prompt_text=True)).json["prompt_text"] == text
    first, second = call(app, CHAT, chat(return_prompt_text=True, stream=True)).events[:2]
    assert first["prompt_text"] == text
    assert "prompt_text" not in second
    for prompt in ("a<|im_end|>b", [*ids("a"), 2, *ids("b")]):
        body = comp(prompt, return_prompt_text=True)
        assert call(app, COMP, body).json["choices"][0]["prompt_text"] == "a<|im_end|>b"
        assert call(app, COMP, body | {"stream": True}).events[0]["choices"][0]["prompt_text"] == "a<|im_end|>b"


def test_nothing_is_told_unasked(app: Any) -> None:
    for value in (None, False):
        fields = dict.fromkeys(("return_token_ids", "return_tokens_as_token_ids", "return_prompt_text"), value)
        for path, plain in ((CHAT, chat()), (COMP, comp())):
            for more in ({}, {"stream": True}):
                with_fields, without = (call(app, path, plain | more | f).body for f in (fields, {}))
                assert b"token_ids" not in with_fields
                assert b"prompt_text" not in with_fields
                assert len(with_fields) == len(without)


# ---- tokens by id


def test_tokens_as_token_ids(app: Any, engine: FakeEngineClient) -> None:
    engine.script = lambda request: Script([[byte_id(0xC3), byte_id(0xA9)]])
    names = [f"token_id:{token_id}" for token_id in (byte_id(0xC3), byte_id(0xA9), EOS)]
    fields = {"return_tokens_as_token_ids": True}
    for stream in ({}, {"stream": True}):
        answer = call(app, CHAT, chat(logprobs=True, top_logprobs=2, **fields, **stream))
        events = answer.events[:-1] if stream else [answer.json]
        found = [one["logprobs"]["content"] for event in events for one in event["choices"] if one["logprobs"]]
        content = [item for part in found for item in part]
        assert [item["token"] for item in content] == names
        assert [item["top_logprobs"][0]["token"] for item in content] == names
        assert content[0]["bytes"] == [0xC3]
        assert all(item["top_logprobs"][1]["token"].startswith("token_id:") for item in content)
    logprobs = call(app, COMP, comp("é", logprobs=2, echo=True, **fields)).json["choices"][0]["logprobs"]
    assert logprobs["tokens"] == [*names[:2], *names]
    assert [list(top)[0] for top in logprobs["top_logprobs"][1:]] == [names[1], *names]
