"""Fields beside sampling: names of requests, larger chunks, and those that this server knows but does not have."""

import json
from typing import Any

import pytest
import tokenizers
from gateway_fakes import CHAT, COMP, FakeEngineClient, call, chat, comp, ids, make_state
from tokenizers import decoders, models

from gateway.app import create_app
from gateway.text.tokenizer import Tokenizer


@pytest.mark.parametrize("path", [CHAT, COMP])
def test_request_ids_become_the_id(app: Any, path: str) -> None:
    body, prefix = (chat(), "chatcmpl-") if path == CHAT else (comp(), "cmpl-")
    for request_id in ("a", "my-request_1.2:3", "x" * 128):
        assert call(app, path, body | {"request_id": request_id}).json["id"] == prefix + request_id
        events = call(app, path, body | {"request_id": request_id, "stream": True}).events[:-1]
        assert {event["id"] for event in events} == {prefix + request_id}
    first, second = (call(app, path, body | {"request_id": None}).json["id"] for _ in range(2))
    assert first != second
    for bad in ("", "x" * 129, "a b", "a\n", "é", "a/b", 5):
        answer = call(app, path, body | {"request_id": bad})
        assert (answer.status, answer.json["error"]["param"]) == (400, "request_id")


# ---- stream_interval


def chunk_sizes(app: Any, path: str, body: dict[str, Any], index: int = 0) -> list[int]:
    """Tokens of each chunk of a choice; a chat's first chunk holds the role alone."""
    events = call(app, path, body | {"stream": True, "return_token_ids": True}).events[:-1]
    mine = [one for event in events for one in event["choices"] if one["index"] == index]
    return [len(one["token_ids"]) for one in mine if "token_ids" in one]


@pytest.mark.parametrize(
    ("interval", "per_output", "sizes"),
    [
        (None, 1, [1] * 11),
        (1, 1, [1] * 11),
        (3, 1, [1, 3, 3, 3, 1]),
        (5, 1, [1, 5, 5]),
        (1000, 1, [1, 10]),
        (2**63 - 1, 1, [1, 10]),
        (3, 2, [2, 4, 4, 1]),
        (3, 4, [4, 4, 3]),
    ],
)
def test_stream_interval(
    app: Any, engine: FakeEngineClient, interval: int | None, per_output: int, sizes: list[int]
) -> None:
    engine.answer("0123456789", tokens_per_output=per_output)  # and the EOS
    for path, body in ((CHAT, chat()), (COMP, comp())):
        assert chunk_sizes(app, path, body | {"stream_interval": interval}) == sizes


@pytest.mark.parametrize(
    "fields",
    [{}, {"n": 3}, {"stop": ["wor"]}, {"max_tokens": 5}, {"logprobs": 1, "echo": True, "prompt": ["ab", "c"], "n": 2}],
)
@pytest.mark.parametrize("interval", [2, 4, 100])
def test_the_interval_changes_nothing_else(
    app: Any, engine: FakeEngineClient, fields: dict[str, Any], interval: int
) -> None:
    engine.answer("Hello, world", "né 🙂", "")

    def joined(interval: int) -> dict[int, Any]:
        body = comp(**fields, stream=True, stream_interval=interval, stream_options={"include_usage": True})
        events = call(app, COMP, body).events[:-1]
        choices: dict[int, Any] = {}
        for one in (one for event in events for one in event["choices"]):
            mine = choices.setdefault(one["index"], {"text": "", "tokens": [], "offsets": [], "finish": []})
            mine["text"] += one["text"]
            mine["tokens"] += (one["logprobs"] or {}).get("tokens", [])
            mine["offsets"] += (one["logprobs"] or {}).get("text_offset", [])
            mine["finish"] += [(one["finish_reason"], one["stop_reason"])] if one["finish_reason"] else []
        return choices | {-1: events[-1]["usage"]}

    assert joined(interval) == joined(1)


def test_bad_stream_intervals(app: Any, engine: FakeEngineClient) -> None:
    for path, body in ((CHAT, chat()), (COMP, comp())):
        for value in (0, -1, 1.5, "2", 2**63):
            answer = call(app, path, body | {"stream": True, "stream_interval": value})
            assert (answer.status, answer.json["error"]["param"]) == (400, "stream_interval")
        answer = call(app, path, body | {"stream_interval": 2})
        assert (answer.status, answer.json["error"]["param"]) == (400, "stream_interval")
        assert engine.streams == []
        assert call(app, path, body | {"stream_interval": 1}).status == 200
        engine.streams.clear()


# ---- what this server does not have

KNOWN: list[tuple[str, Any, tuple[Any, ...]]] = [
    ("thinking_token_budget", 100, (None, -1)),
    ("logprob_token_ids", [1], (None, [])),
    ("repetition_detection", {"max_pattern_size": 3}, (None,)),
    ("watermarking", True, (None, False)),
    ("session_id", "s", (None,)),
    ("vllm_xargs", {"a": 1}, (None, {})),
    ("kv_transfer_params", {"a": 1}, (None, {})),
    ("ec_transfer_params", {"a": 1}, (None, {})),
    ("mm_processor_kwargs", {"a": 1}, (None, {})),
    ("media_io_kwargs", {"a": 1}, (None, {})),
    ("store", True, (None, False)),
]
KNOWN_OF_CHAT: list[tuple[str, Any, tuple[Any, ...]]] = [
    ("echo", True, (None, False)),
    ("functions", [{"name": "f"}], (None, [])),
    ("function_call", "auto", (None, "none")),
    ("modalities", ["audio"], (None, ["text"])),
    ("audio", {"voice": "a"}, (None, {})),
    ("prediction", {"type": "content"}, (None, {})),
    ("web_search_options", {}, (None,)),
    ("verbosity", "low", (None,)),
]
KNOWN_OF_COMPLETIONS: list[tuple[str, Any, tuple[Any, ...]]] = [("prompt_embeds", "AA==", (None, []))]
CASES = [
    *((CHAT, *case) for case in KNOWN + KNOWN_OF_CHAT),
    *((COMP, *case) for case in KNOWN + KNOWN_OF_COMPLETIONS),
]


@pytest.mark.parametrize(("path", "name", "value", "harmless"), CASES)
def test_known_fields_without_effect_here(
    app: Any, engine: FakeEngineClient, path: str, name: str, value: Any, harmless: tuple[Any, ...]
) -> None:
    body = chat() if path == CHAT else comp()
    for stream in (False, True):
        answer = call(app, path, body | {name: value, "stream": stream})
        assert answer.status == 400
        error = answer.json["error"]
        assert (error["param"], error["code"]) == (name, "unsupported_parameter")
        assert "not supported" in error["message"]
    assert engine.streams == []
    for accepted in harmless:
        assert call(app, path, body | {name: accepted}).status == 200, json.dumps(accepted)


def test_fields_of_the_other_route_are_unknown(app: Any) -> None:
    for path, name in (
        (CHAT, "best_of"),
        (CHAT, "suffix"),
        (CHAT, "prompt_embeds"),
        (COMP, "tools"),
        (COMP, "documents"),
    ):
        answer = call(app, path, (chat() if path == CHAT else comp()) | {name: None})
        assert (answer.status, answer.json["error"]["param"]) == (400, name)


# ---- spaces_between_special_tokens


def test_nothing_is_put_between_special_tokens(app: Any, engine: FakeEngineClient) -> None:
    engine.answer([*ids("a"), 1, 1, 0, *ids("b")])
    for value in (None, True, False):
        body = comp(skip_special_tokens=False, spaces_between_special_tokens=value)
        text = call(app, COMP, body).json["choices"][0]["text"]
        assert text == "a<|im_start|><|im_start|><|endoftext|>b"


def test_a_tokenizer_that_puts_spaces_cannot_leave_them_out(engine: FakeEngineClient) -> None:
    backend = tokenizers.Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1, "[SEP]": 2}, unk_token="[UNK]"))
    backend.decoder = decoders.WordPiece()
    backend.add_special_tokens([tokenizers.AddedToken("[SEP]", special=True, normalized=False)])
    tokenizer = Tokenizer(backend.to_str(), {})
    assert tokenizer.joins_special_tokens_with_spaces
    app = create_app(make_state(engine, tokenizer=tokenizer))
    answer = call(app, COMP, comp([1], spaces_between_special_tokens=False))
    assert (answer.status, answer.json["error"]["param"]) == (400, "spaces_between_special_tokens")
    assert engine.streams == []
