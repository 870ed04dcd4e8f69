"""Ten thousand requests that a seeded generator has spoiled: each is answered, none by a fault of the server's."""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from e2e_http import CHAT, COMP, Exchange, chat, comp, strict_json
from e2e_models import make_tiny_model
from e2e_process import ServerProcess
from e2e_starter import PATIENT, TINY

NUM_REQUESTS = 10_000
NUM_AT_ONCE = 12
MOST_SECONDS = 60.0  # for one answer, on a machine that does something else too

TOOL = {
    "type": "function",
    "function": {
        "name": "f",
        "description": "does it",
        "parameters": {"type": "object", "properties": {"x": {"enum": [1, 2]}}, "required": ["x"]},
        "strict": True,
    },
}
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "boolean"}, "b": {"enum": ["x", "y"]}, "c": {"$ref": "#/$defs/d"}},
    "required": ["a"],
    "additionalProperties": False,
    "$defs": {"d": {"type": "integer", "minimum": 0, "maximum": 9}},
}
SAMPLING = {
    "temperature": 0.7,
    "top_p": 0.9,
    "top_k": 20,
    "min_p": 0.1,
    "presence_penalty": 0.5,
    "frequency_penalty": -0.5,
    "repetition_penalty": 1.1,
    "logit_bias": {"5": 1.5, "7": -2},
    "seed": 3,
    "n": 2,
    "min_tokens": 1,
    "stop": ["zq", "qz"],
    "stop_token_ids": [9],
    "bad_words": ["sea"],
}
SEEDS: list[tuple[str, dict[str, Any]]] = [
    (CHAT, chat("Hello", max_tokens=2, **SAMPLING, logprobs=True, top_logprobs=3)),
    (CHAT, chat("Hello", max_tokens=3, stream=True, stream_options={"include_usage": True}, user="me", metadata={})),
    (CHAT, chat("Hello", max_tokens=3, tools=[TOOL], tool_choice="required", parallel_tool_calls=False)),
    (CHAT, chat("Hello", max_tokens=3, tools=[TOOL], tool_choice={"type": "function", "function": {"name": "f"}})),
    (
        CHAT,
        chat(
            "Hello",
            max_tokens=3,
            response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}},
        ),
    ),
    (CHAT, chat("Hello", max_tokens=2, structured_outputs={"regex": "[ab]{2}"}, stream=True)),
    (CHAT, chat("Hello", max_tokens=2, structured_outputs={"grammar": 'root ::= "a" | "b"'})),
    (
        CHAT,
        {
            "model": "tiny",
            "max_tokens": 2,
            "messages": [
                {"role": "system", "content": "be short"},
                {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
                },
                {"role": "tool", "tool_call_id": "1", "content": "done"},
            ],
            "chat_template_kwargs": {"x": 1},
        },
    ),
    (COMP, comp("The sea", max_tokens=2, **SAMPLING, logprobs=2, echo=True)),
    (COMP, comp(["a", "b"], max_tokens=2, stream=True, cache_salt="s", ignore_eos=True)),
    (COMP, comp([[5, 6], [7]], max_tokens=2, allowed_token_ids=[5, 6])),
    ("/tokenize", {"model": "tiny", "prompt": "a b", "return_token_strs": True}),
    ("/tokenize", {"model": "tiny", "messages": [{"role": "user", "content": "x"}], "add_generation_prompt": True}),
    ("/detokenize", {"model": "tiny", "tokens": [5, 6, 7]}),
]
ODD: list[Callable[[random.Random], Any]] = [
    lambda r: None,
    lambda r: r.choice([True, False]),
    lambda r: r.choice([-1, 0, 1, 2, 5, 20, 21, 128, 2**31, 2**53, 2**63, -(2**63) - 1, 10**30]),
    lambda r: r.choice([0.0, -0.5, 1.5, 1e-9, 2.0001, 1e308, -1e308]),
    lambda r: r.choice(["", "x", "auto", "none", "\x00", "\ud83d", "🙂" * 50, "z" * 3000, "{{ 7 * 7 }}", "../../etc"]),
    lambda r: r.choice([[], [[]], [None], ["a", 1], [1.5], [-1], [10**9], {}, {"a": {}}, {"": ""}, {"1": "x"}]),
    lambda r: json.loads("[" * 40 + "]" * 40),
    lambda r: {"type": r.choice(["object", "array", "text", "nonsense", "json_object"])},
]


def places(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths to everything inside."""
    found = [path] if path else []
    for key, value in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
        found += places(value, (*path, key))
    return found


def is_right_and_long(max_tokens: Any) -> bool:
    """Nobody wants to wait for that; what is no number at all, or too large a one, is a fault like others."""
    return max_tokens is None or (isinstance(max_tokens, int | float) and max_tokens in range(9, 40_000))


def spoiled(r: random.Random, body: dict[str, Any]) -> bytes:
    """The body with one to three faults, as bytes."""
    body = json.loads(json.dumps(body))
    for _ in range(r.randint(1, 3)):
        where = places(body)
        if not where:
            break
        *parents, last = r.choice(where)
        node: Any = body
        for key in parents:
            node = node[key]
        match r.randrange(4):
            case 0:
                del node[last]
            case 1 | 2:
                node[last] = r.choice(ODD)(r)
            case _:
                if isinstance(node, dict):
                    node[r.choice(["extra", "n", "stream", "logprobs", "suffix", "best_of", "echo"])] = r.choice(ODD)(r)
                else:
                    node.append(r.choice(ODD)(r))
    if "messages" in body and is_right_and_long(body.get("max_tokens")):
        body["max_tokens"] = 3
    data = json.dumps(body).encode()
    if r.random() < 0.1:
        data = data.replace(b"0.7", r.choice([b"NaN", b"Infinity", b"1e999", b"-0"]))
    if r.random() < 0.1 and data:
        place = r.randrange(len(data))
        data = r.choice([data[:place], data[:place] + bytes([r.randrange(256)]) + data[place + 1 :], data + b"}"])
    return data


async def send_all(server: ServerProcess, requests: list[tuple[str, bytes]]) -> list[tuple[str, bytes, int, bytes]]:
    """All of them, some at a time, and what came back."""
    found = []
    todo = iter(requests)

    async def work(client: httpx.AsyncClient) -> None:
        for path, data in todo:
            answer = await client.post(path, content=data, headers={"Content-Type": "application/json"})
            found.append((path, data, answer.status_code, answer.content))

    async with httpx.AsyncClient(base_url=server.base_url, timeout=MOST_SECONDS) as client:
        await asyncio.gather(*(work(client) for _ in range(NUM_AT_ONCE)))
    return found


@pytest.fixture
def quick_server(tmp_path: Path) -> Iterator[ServerProcess]:
    """Two layers: what is asked here is how requests are read, and a thousand of them are computed."""
    model = make_tiny_model(tmp_path / "tiny", num_hidden_layers=2)
    with ServerProcess(tmp_path / "quick", str(model), *TINY, "--max-model-len", "32768", *PATIENT) as process:
        yield process.wait_ready()
        process.check_healthy()


@pytest.mark.timeout(900)
def test_no_spoiled_request_is_the_servers_fault(quick_server: ServerProcess) -> None:
    server = quick_server
    r = random.Random(2026)
    requests = []
    for _ in range(NUM_REQUESTS):
        path, body = r.choice(SEEDS)
        requests.append((path, spoiled(r, body)))
    num_tokens = server.tokens_within(3, most=2000)
    healthy = comp("Every ship that passes", max_tokens=num_tokens, ignore_eos=True, seed=5, temperature=1)
    with Exchange(server, COMP, healthy | {"stream": True}) as stream:
        alone = stream.ended_well().text()
    with Exchange(server, COMP, healthy | {"stream": True}, timeout=900) as stream:
        stream.read_events(1)
        answers = asyncio.run(send_all(server, requests))
        assert stream.ended_well().text() == alone
    statuses = Counter(status for _, _, status, _ in answers)
    faults = [answer for answer in answers if answer[2] >= 500]
    assert faults == [], (len(faults), statuses)
    for path, data, status, content in answers:
        if status == 200 and content.startswith(b"data: "):
            events = content.decode().split("\n\n")
            assert events[-2:] == ["data: [DONE]", ""], (path, data, content[-300:])
        elif status != 404 or content:
            message = strict_json(content)
            assert status == 200 or message["error"]["message"], (path, data)
    assert statuses[200] > NUM_REQUESTS / 20
    assert statuses[400] > NUM_REQUESTS / 3
    assert "Traceback" not in server.log
