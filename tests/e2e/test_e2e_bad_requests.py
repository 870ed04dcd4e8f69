"""What cannot be served is a 4xx that names the field, the same with and without stream, and hurts nobody else."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from e2e_http import CHAT, COMP, Exchange, chat, comp, long_runner, post, strict_json
from e2e_process import ServerProcess

# (path, fields that replace those of a good request, the field that the answer names)
Case = tuple[str, dict[str, Any], str]

NUMBERS: dict[str, list[Any]] = {
    "temperature": [-0.5, 2.1, "nan", "1", True, [], 1e308],
    "top_p": [0, 1.5, -1, "x"],
    "min_p": [-0.1, 1.1],
    "top_k": [-2, 1.5, 2**70],
    "presence_penalty": [3, -3],
    "frequency_penalty": [2.5, -2.5],
    "repetition_penalty": [0, -1],
    "seed": ["x", 1.5, 2**63],
    "n": [0, -1, 1.5, 5000],
    "max_tokens": [-1, "5", 1.5, 2**63, True],
    "min_tokens": [-1, 50],
    "logit_bias": [{"5": 101}, {"5": "x"}, {"abc": 1}, {"1.5": 1}, {"-1": 1}, {"99999": 1}, [1]],
    "stop": ["", [""], ["a", ""], [1], ["a"] * 5],
    "stop_token_ids": [[-1], [99999], ["a"], 5],
    "allowed_token_ids": [[], [-1], [99999]],
    "bad_words": [[""], [1], "x"],
    "stream_options": [{"include_usage": 1}, {"unknown": True}, 5],
    "ignore_eos": ["yes", 1],
    "priority": [1, "high"],
    "cache_salt": ["", "x" * 200, 5],
    "no_such_field": [1],
}
PROMPTS: list[Any] = ["", [""], [], [[]], [[], [5]], None, ["a", [1]], [True], [1.5], 5]
IDS: list[Any] = [[99999], [-1], [2**31], [2**63]]
MESSAGES: list[Any] = [
    [],
    None,
    "hello",
    [{"role": "user"}],
    [{"role": "bot", "content": "x"}],
    [{"content": "x"}],
    [{"role": "user", "content": 5}],
    [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://127.0.0.1:9/x"}}]}],
    [{"role": "user", "content": [{"type": "text"}]}],
]
CASES: list[Case] = [
    *((path, {name: value}, name) for name, values in NUMBERS.items() for value in values for path in (CHAT, COMP)),
    *((COMP, {"prompt": prompt}, "prompt") for prompt in [*PROMPTS, *IDS]),
    *((CHAT, {"messages": messages}, "messages") for messages in MESSAGES),
    (CHAT, {"max_tokens": 0}, "max_tokens"),
    (CHAT, {"max_completion_tokens": -1}, "max_completion_tokens"),
    (CHAT, {"top_logprobs": 3}, "top_logprobs"),
    *((CHAT, {"logprobs": True, "top_logprobs": value}, "top_logprobs") for value in (21, -1, 49152)),
    *((COMP, {"logprobs": value}, "logprobs") for value in (21, -1, True, 1000000)),
    (CHAT, {"tools": [{"type": "function", "function": {"name": ""}}]}, "tools[0].function.name"),
    (CHAT, {"tool_choice": "required"}, "tool_choice"),
    (CHAT, {"response_format": {"type": "poem"}}, "response_format.type"),
    (COMP, {"best_of": 65}, "best_of"),
    (COMP, {"suffix": "x"}, "suffix"),
    (COMP, {"model": "unknown"}, "model"),
    (CHAT, {"model": "unknown"}, "model"),
    (COMP, {"prompt": [5] * 32768, "max_tokens": 1}, "prompt"),
    (COMP, {"prompt": [5] * 32700, "max_tokens": 100}, "max_tokens"),
    (CHAT, {"messages": [{"role": "user", "content": "word " * 40_000}]}, "messages"),
]


@pytest.fixture(scope="module")
def neighbour(main_process: ServerProcess) -> Iterator[Exchange]:
    """A stream that runs while everything here is sent. It must end as if nothing had been."""
    body = long_runner("A healthy stream", max_tokens=500, seed=1, temperature=1)
    alone = post(main_process, COMP, {**body, "stream": False})["choices"][0]["text"]
    with Exchange(main_process, COMP, body) as exchange:
        exchange.read_events(3)
        yield exchange
        assert exchange.ended_well().text() == alone


def error_of(status: int, headers: Any, body: bytes) -> dict[str, Any]:
    """The error of a 4xx, its shape checked."""
    assert 400 <= status < 500, (status, body[:300])
    assert headers["content-type"].startswith("application/json")
    answer = strict_json(body)
    assert set(answer) == {"error"}
    error: dict[str, Any] = answer["error"]
    assert {"message", "type", "param", "code"} <= set(error)
    assert error["message"]
    assert len(body) < 2000
    assert "Traceback" not in error["message"]
    return error


@pytest.mark.usefixtures("neighbour")
def test_every_bad_value_is_refused_by_name_in_both_modes(main_process: ServerProcess) -> None:
    wrong: list[tuple[Any, ...]] = []
    for path, fields, name in CASES:
        body = {**(chat if path == CHAT else comp)(max_tokens=5), **fields}
        answers = []
        for is_stream in (False, True):
            sent = {**body, "stream": is_stream}
            if name != "stream_options" and not is_stream:
                sent.pop("stream")
            response = main_process.http.post(path, content=json.dumps(sent))
            if response.status_code // 100 != 4:
                wrong.append((path, fields, response.status_code, response.text[:100]))
                continue
            error = error_of(response.status_code, response.headers, response.content)
            if name not in (error["param"] or "") and name not in error["message"]:
                wrong.append((path, fields, error["param"], error["message"]))
            answers.append((response.status_code, error))
        if len(answers) == 2 and answers[0] != answers[1] and name != "stream_options":
            wrong.append((path, fields, "stream differs", *answers))
    assert not wrong, "\n".join(map(str, wrong))
    assert main_process.metric("num_requests_running") <= 1  # nothing of all that was begun


RAW_BODIES = {
    "nan": b'{"model":"tiny","prompt":"a","temperature":NaN}',
    "infinity": b'{"model":"tiny","prompt":"a","temperature":Infinity}',
    "bias": b'{"model":"tiny","prompt":"a","logit_bias":{"5":NaN}}',
    "huge number": b'{"model":"tiny","prompt":"a","max_tokens":1' + b"0" * 400 + b"}",
    "list": b"[]",
    "null": b"null",
    "number": b"123",
    "cut": b"{",
    "empty": b"",
    "deep": b"[" * 100_000,
    "deep field": b'{"model":"tiny","prompt":' + b"[" * 100_000,
    "not UTF-8": b'{"model":"tiny","prompt":"\xff\xfe"}',
    "surrogate": b'{"model":"tiny","prompt":"cut \\ud83d"}',
    "surrogate in a message": b'{"model":"tiny","messages":[{"role":"user","content":"cut \\ud83d"}]}',
}


@pytest.mark.usefixtures("neighbour")
@pytest.mark.parametrize("name", RAW_BODIES)
def test_malformed_bodies(main_process: ServerProcess, name: str) -> None:
    for path in (CHAT, COMP):
        response = main_process.http.post(path, content=RAW_BODIES[name])
        error = error_of(response.status_code, response.headers, response.content)
        assert response.status_code == 400
        assert error["type"] == "invalid_request_error"


@pytest.mark.usefixtures("neighbour")
def test_paths_and_methods(main_process: ServerProcess) -> None:
    for method, path, status in (
        ("GET", CHAT, 405),
        ("DELETE", COMP, 405),
        ("POST", "/health", 405),
        ("GET", "/v1/nothing", 404),
        ("POST", "/v1/chat/completions/", 404),
        ("GET", "/v1/models/other", 404),
    ):
        response = main_process.http.request(method, path)
        error_of(response.status_code, response.headers, response.content)
        assert response.status_code == status, path


def test_a_body_over_the_limit_is_refused_before_it_is_there(server: ServerProcess) -> None:
    with Exchange(server, COMP, b"", headers={"Content-Length": str(64 * 1024 * 1024)}) as exchange:
        assert exchange.read_head().status == 413
        error_of(413, exchange.headers, exchange.read_body())


def test_the_borders_are_accepted(server: ServerProcess) -> None:
    borders: list[dict[str, Any]] = [
        {"temperature": 0},
        {"temperature": 2},
        {"top_p": 1},
        {"top_k": -1},
        {"top_k": 0},
        {"presence_penalty": 2, "frequency_penalty": -2},
        {"seed": -1},
        {"seed": 2**63 - 1},
        {"max_tokens": None},
        {"stop": None},
        {"stop": []},
        {"logprobs": 20},
        {"logit_bias": {}},
        {"min_tokens": 2, "max_tokens": 2},
        {"user": "me", "metadata": {"a": "b"}, "service_tier": "auto", "store": False},
    ]
    for fields in borders:
        post(server, COMP, comp(**{"max_tokens": 2, **fields}))
    assert post(server, COMP, comp(max_tokens=0))["usage"]["completion_tokens"] == 0
    assert post(server, COMP, comp(ignore_eos=True))["usage"]["completion_tokens"] == 16  # OpenAI's default
    both = post(server, CHAT, chat(max_tokens=3, max_completion_tokens=5, ignore_eos=True))
    assert both["usage"]["completion_tokens"] == 5


def test_the_server_is_as_it_was(server: ServerProcess) -> None:
    """The health check after this test sees what the tests above have left."""
    assert server.status("/health/ready") == 200
