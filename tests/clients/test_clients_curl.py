"""curl: the bytes of a stream, the header fields, and the body of an error."""

import json
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from clients_cases import ANSWER, API_KEY, FRANCE, MODEL

ASKED: dict[str, Any] = {"model": MODEL, "messages": FRANCE, "temperature": 0}


@dataclass(frozen=True, slots=True)
class Answer:
    """What curl wrote."""

    status: int
    headers: dict[str, str]
    body: bytes


def curl(tmp_path: Path, url: str, body: dict[str, Any] | None = None, *, key: str | None = API_KEY) -> Answer:
    head = tmp_path / "head"
    command = ["curl", "-N", "-sS", "--max-time", "60", "--noproxy", "*", "-D", str(head), url]
    if key is not None:
        command += ["-H", f"Authorization: Bearer {key}"]
    if body is not None:
        command += ["-H", "Content-Type: application/json", "--data-binary", json.dumps(body)]
    found = subprocess.run(command, capture_output=True, check=True, timeout=70, stdin=subprocess.DEVNULL)
    first, *lines = head.read_text().rstrip().split("\n")
    fields = (line.partition(":") for line in lines)
    return Answer(int(first.split()[1]), {name.lower(): value.strip() for name, _, value in fields}, found.stdout)


def events(body: bytes) -> list[Any]:
    """The events but ``[DONE]``; fails unless the body is exactly ``data: LINE`` and an empty line, over and over."""
    assert re.fullmatch(rb"(data: [^\r\n]+\n\n)+", body), body
    *chunks, done = [line.removeprefix(b"data: ") for line in body.split(b"\n\n")[:-1]]
    assert done == b"[DONE]"
    return [json.loads(chunk) for chunk in chunks]


@pytest.mark.parametrize("has_usage", [False, True])
def test_a_stream(tmp_path: Path, base_url: str, has_usage: bool) -> None:
    options = {"stream_options": {"include_usage": True}} if has_usage else {}
    answer = curl(tmp_path, f"{base_url}/chat/completions", {**ASKED, "stream": True, **options})
    assert answer.status == 200
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["transfer-encoding"] == "chunked"
    assert "content-length" not in answer.headers
    assert answer.headers["x-request-id"]
    chunks = events(answer.body)
    if has_usage:
        *chunks, last = chunks
        assert last["choices"] == []
        assert last["usage"]["total_tokens"] > 0
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == ANSWER
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks][-1] == "stop"
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert all(("usage" in chunk) is has_usage for chunk in chunks)


def test_a_stream_of_text(tmp_path: Path, base_url: str) -> None:
    body = {"model": MODEL, "prompt": "One, two, three,", "temperature": 0, "max_tokens": 4, "stream": True}
    answer = curl(tmp_path, f"{base_url}/completions", body)
    chunks = events(answer.body)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks).startswith(" four")
    assert {chunk["object"] for chunk in chunks} == {"text_completion"}


def test_a_whole_answer(tmp_path: Path, base_url: str) -> None:
    answer = curl(tmp_path, f"{base_url}/chat/completions", ASKED)
    assert answer.headers["content-type"] == "application/json"
    assert int(answer.headers["content-length"]) == len(answer.body)
    assert json.loads(answer.body)["choices"][0]["message"]["content"] == ANSWER


@pytest.mark.parametrize("is_stream", [False, True])
def test_an_error(tmp_path: Path, base_url: str, is_stream: bool) -> None:
    answer = curl(tmp_path, f"{base_url}/chat/completions", {**ASKED, "temperature": 3, "stream": is_stream})
    assert answer.status == 400
    assert answer.headers["content-type"] == "application/json"
    error = json.loads(answer.body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", "temperature", None)


@pytest.mark.parametrize("key", [None, "wrong"])
def test_without_the_key(tmp_path: Path, base_url: str, key: str | None) -> None:
    answer = curl(tmp_path, f"{base_url}/models", key=key)
    assert answer.status == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert json.loads(answer.body)["error"]["code"] == "invalid_api_key"
