"""Paths, methods, keys, limits, probes: what lies around the generating routes."""

import asyncio
import logging
from typing import Any

import httpx
import pytest
from gateway_fakes import (
    CHAT,
    COMP,
    TEMPLATE,
    AsgiCall,
    FakeEngineClient,
    call,
    chat,
    comp,
    ids,
    make_state,
    strict_json,
)

from gateway.app import create_app
from gateway.auth import OPEN_PATHS
from gateway.state import GatewayState
from gateway.text.chat_template import ChatTemplate
from observability.metrics import Metrics

KEYS = {"config": {"api_key": ("secret-one", "secret-two")}}


def request(app: Any, method: str, path: str, **options: Any) -> httpx.Response:
    async def exchange() -> httpx.Response:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.request(method, path, **options)

    return asyncio.run(exchange())


def test_unknown_paths_and_methods(app: Any) -> None:
    for method, path, status in (
        ("GET", "/nothing", 404),
        ("POST", "/v1/chat/completions/", 404),
        ("GET", CHAT, 405),
        ("DELETE", "/v1/models", 405),
        ("POST", "/V1/models", 404),
    ):
        answer = request(app, method, path)
        assert answer.status_code == status, path
        error = answer.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        if status == 405:
            assert answer.headers["allow"]


def test_models(app: Any, engine: FakeEngineClient) -> None:
    models = request(app, "GET", "/v1/models").json()
    assert models["object"] == "list"
    assert [card["id"] for card in models["data"]] == ["tiny", "alias"]
    assert models["data"][1] == {
        "id": "alias",
        "object": "model",
        "created": 1700000000,
        "owned_by": "octavo",
        "root": "tiny",
        "parent": None,
        "max_model_len": 128,
    }
    assert request(app, "GET", "/v1/models/alias").json() == models["data"][1]
    missing = request(app, "GET", "/v1/models/some/other")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")


def test_models_with_slashes_in_their_names(engine: FakeEngineClient) -> None:
    app = create_app(make_state(engine, model_names=("org/model",)))
    assert request(app, "GET", "/v1/models/org/model").json()["id"] == "org/model"


def test_health_and_readiness(app: Any, engine: FakeEngineClient, state: GatewayState) -> None:
    for path in ("/health", "/health/ready", "/health/live"):
        assert request(app, "GET", path).status_code == 200
        assert request(app, "HEAD", path).status_code == 200
    engine.is_ready = False
    assert request(app, "GET", "/health/live").status_code == 200
    for method, path, body in (
        ("GET", "/health", None),
        ("GET", "/health/ready", None),
        ("GET", "/v1/models", None),
        ("POST", CHAT, chat()),
        ("POST", COMP, comp(stream=True)),
    ):
        answer = request(app, method, path, json=body)
        assert answer.status_code == 503, path
        assert int(answer.headers["retry-after"]) > 0
        assert answer.json()["error"]["type"] == "server_error"
    engine.is_ready = True
    state.desk.front.drain()
    assert request(app, "GET", "/health").status_code == 503
    assert request(app, "POST", CHAT, json=chat()).json()["error"]["code"] == "draining"
    assert engine.streams == []


def test_version_and_metrics(app: Any, engine: FakeEngineClient) -> None:
    assert request(app, "GET", "/version").json() == {"version": "0.1.0"}
    call(app, CHAT, chat(model="nope"))
    call(app, CHAT, chat(n=2))
    call(app, "/made/up/path")
    answer = request(app, "GET", "/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    lines = answer.text.splitlines()
    for expected in (
        'octavo:request_success_total{engine="0",finished_reason="stop",model_name="tiny"} 1.0',
        'octavo:request_success_total{engine="0",finished_reason="abort",model_name="tiny"} 0.0',
        'octavo:time_to_first_token_seconds_count{engine="0",model_name="tiny"} 1.0',
        'octavo:inter_token_latency_seconds_count{engine="0",model_name="tiny"} 24.0',  # 13 tokens a choice
        'octavo:request_queue_time_seconds_count{engine="0",model_name="tiny"} 1.0',
        'octavo:request_generation_tokens_sum{engine="0",model_name="tiny"} 26.0',
        'http_requests_total{handler="/v1/chat/completions",method="POST",status="2xx"} 1.0',
        'http_requests_total{handler="/v1/chat/completions",method="POST",status="4xx"} 1.0',
        'http_requests_total{handler="other",method="POST",status="4xx"} 1.0',
    ):
        assert expected in lines, [line for line in lines if line.startswith(expected.split("{")[0])]


def test_tokenize(app: Any) -> None:
    body = call(app, "/tokenize", {"prompt": "hé<|im_end|>", "return_token_strs": True}).json
    assert body["tokens"] == [*ids("hé"), 2]
    assert (body["count"], body["max_model_len"]) == (4, 128)
    assert body["token_strs"] == ["h", "\ufffd", "\ufffd", "<|im_end|>"]
    messages = chat("hi")["messages"]
    body = call(app, "/tokenize", {"messages": messages, "model": "tiny"}).json
    assert body["tokens"] == [1, *ids("user\nhi"), 2, *ids("\n"), 1, *ids("assistant\n")]
    assert body["token_strs"] is None
    body = call(app, "/tokenize", {"messages": messages, "add_generation_prompt": False}).json
    assert body["tokens"] == [1, *ids("user\nhi"), 2, *ids("\n")]
    assert call(app, "/tokenize", {"prompt": ""}).json["count"] == 0
    assert call(app, "/detokenize", {"tokens": [*ids("hé"), 2]}).json == {"prompt": "hé<|im_end|>"}
    for path, bad, param in (
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": messages}, "prompt"),
        ("/tokenize", {"prompt": "a", "add_generation_prompt": True}, "add_generation_prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": [100000]}, "tokens"),
        ("/detokenize", {"tokens": ["a"]}, "tokens"),
        ("/detokenize", {}, "tokens"),
    ):
        answer = call(app, path, bad)
        assert (answer.status, answer.json["error"]["param"]) == (400, param)


def test_text_of_control_tokens_in_content_stays_text(app: Any, engine: FakeEngineClient) -> None:
    call(app, CHAT, chat("x<|im_end|>y"))
    assert engine.streams[0].request.prompt_ids.count(2) == 1
    call(app, COMP, comp("x<|im_end|>y"))
    assert engine.streams[1].request.prompt_ids.count(2) == 1


def test_a_model_without_template(engine: FakeEngineClient, state: GatewayState) -> None:
    app = create_app(make_state(engine, chat_template=ChatTemplate({}, state.tokenizer)))
    answer = call(app, CHAT, chat())
    assert (answer.status, answer.json["error"]["param"]) == (400, "messages")


@pytest.mark.parametrize(
    "path",
    [
        CHAT,
        COMP,
        "/v1/models",
        "/v1/models/tiny",
        "/tokenize",
        "/detokenize",
        "/metrics",
        "/version",
        "/nothing",
        "//v1/chat/completions",
        "/v1/./chat/completions",
        "/health/../v1/models",
        "/health/",
        "/HEALTH",
        "/v1/chat/completions/",
    ],
)
def test_every_path_needs_a_key(engine: FakeEngineClient, path: str, caplog: pytest.LogCaptureFixture) -> None:
    app = create_app(make_state(engine, **KEYS))
    caplog.set_level(logging.DEBUG)
    for value in (
        None,
        "secret-one",
        "Bearer",
        "Bearer ",
        "Bearer wrong",
        "Bearer secret-one junk",
        "Basic secret-one",
    ):
        for method in ("GET", "POST", "HEAD", "PUT"):
            headers = [] if value is None else [(b"authorization", value.encode())]
            answer = call(app, path, chat(), method=method, headers=headers)
            assert answer.status == 401
            assert answer.json["error"]["code"] == "invalid_api_key"
            assert "secret" not in answer.body.decode()
    twice = [(b"authorization", b"Bearer wrong"), (b"authorization", b"Bearer secret-one")]
    assert call(app, path, chat(), headers=twice).status == 401
    assert engine.streams == []
    assert "secret" not in caplog.text


def routed_paths(app: Any) -> list[tuple[str, str]]:
    """(method, path) of every route that the application has, and of every spelling that a proxy might let through."""
    found = []
    for route in app.routes:
        path = route.path.replace("{model:path}", "tiny")
        spellings = [path, f"/{path}", f"{path}/", path.upper(), f"{path}?x=1", f"{path}%20", f"{path};x", f"{path}\0"]
        spellings += [
            "/." + path,
            path.replace("/", "/./"),
            path.replace("/", "//"),
            f"/health/..{path}",
            f"/health{path}",
        ]
        spellings += [path.replace("/v1", "/V1"), path.replace("/", "\\"), f"/%2e{path}"]
        found += [(method, spelling) for method in route.methods for spelling in spellings]
    return [(method, path) for method, path in found if path not in OPEN_PATHS]


def test_no_route_answers_without_a_key(engine: FakeEngineClient) -> None:
    app: Any = create_app(make_state(engine, **KEYS))
    paths = routed_paths(app)
    assert {path for _, path in paths} >= {CHAT, COMP, "/v1/models", "/metrics", "/version", "/tokenize", "//v1/models"}
    assert {method for method, _ in paths} == {"GET", "HEAD", "POST"}

    async def scenario() -> None:
        for method, path in paths:
            for headers in ([], [(b"authorization", b"Bearer secret-three")]):
                exchange = await AsgiCall(app, path, chat(), method=method, headers=headers).run()
                assert exchange.status == 401, (method, path)
        right = [(b"authorization", b"Bearer secret-two")]
        for method, path in paths:
            exchange = await AsgiCall(app, path, {}, method=method, headers=right).run()
            assert exchange.status != 401, (method, path)

    asyncio.run(scenario())
    assert engine.streams == []


def test_keys_and_open_paths(engine: FakeEngineClient) -> None:
    app = create_app(make_state(engine, **KEYS))
    for key in ("Bearer secret-one", "bearer secret-two"):
        assert call(app, CHAT, chat(), headers=[(b"authorization", key.encode())]).status == 200
    for path in ("/health", "/health/live", "/health/ready"):
        assert call(app, path, method="GET").status == 200
    preflight = call(app, CHAT, method="OPTIONS")
    assert (preflight.status, preflight.headers["allow"]) == (204, "POST")


def test_no_websocket_passes(engine: FakeEngineClient) -> None:
    app = create_app(make_state(engine, **KEYS))
    exchange = AsgiCall(app, CHAT)
    exchange.scope["type"] = "websocket"
    assert asyncio.run(exchange.run()).sent[0]["type"] == "websocket.close"


def test_request_ids(app: Any) -> None:
    for sent, is_kept in (
        (b"abc-1.2_3:4", True),
        (b"x" * 128, True),
        (b"x" * 129, False),
        (b"a b", False),
        (b"", False),
    ):
        answer = call(app, "/version", method="GET", headers=[(b"x-request-id", sent)])
        assert (answer.headers["x-request-id"] == sent.decode()) == is_kept
        assert answer.headers["x-request-id"]
    assert "x-request-id" in call(app, CHAT, chat(stream=True)).headers
    assert "x-request-id" in call(app, "/nothing").headers


def test_body_limit(engine: FakeEngineClient) -> None:
    app = create_app(make_state(engine, config={"max_request_bytes": 1024}))
    announced = AsgiCall(app, CHAT, chat(), headers=[(b"content-length", b"2000")])
    asyncio.run(announced.run())
    assert announced._incoming.qsize() == 1  # not even begun to read
    counted = call(app, CHAT, chat("x" * 2000))
    for answer in (announced, counted):
        assert answer.status == 413
        assert answer.headers["connection"] == "close"
        assert answer.json["error"]["code"] == "request_too_large"
    assert call(app, CHAT, chat(), headers=[(b"content-length", b"9" * 5000)]).status == 413
    assert call(app, CHAT, chat(), headers=[(b"content-length", b"1024")]).status == 200


def test_a_bug_is_a_json_500(engine: FakeEngineClient, caplog: pytest.LogCaptureFixture) -> None:
    class BrokenTemplate(ChatTemplate):
        def encode_chat(self, *args: Any, **kwargs: Any) -> list[int]:
            raise AssertionError("a secret of ours")

    state = make_state(engine)
    state.chat_template = BrokenTemplate({"default": TEMPLATE}, state.tokenizer)
    answer = call(create_app(state), CHAT, chat())
    assert answer.status == 500
    assert answer.json["error"]["type"] == "server_error"
    assert "secret" not in answer.body.decode()
    assert "AssertionError" in caplog.text


def test_client_that_leaves_while_it_sends_the_body(app: Any, engine: FakeEngineClient, state: GatewayState) -> None:
    async def scenario() -> None:
        exchange = AsgiCall(app, CHAT)
        exchange._incoming = asyncio.Queue()
        exchange._incoming.put_nowait({"type": "http.request", "body": b'{"mess', "more_body": True})
        exchange.disconnect()
        await exchange.run()
        assert exchange.sent == []

    asyncio.run(scenario())
    assert 'status="4xx"' in state.metrics.render().decode()


def test_defaults_of_the_model_come_after_the_request(engine: FakeEngineClient) -> None:
    from gateway.text.generation_config import GenerationConfig

    defaults = GenerationConfig((2,), temperature=0.3, top_k=5, top_p=0.9, min_p=0.1, repetition_penalty=1.3)
    app = create_app(make_state(engine, defaults=defaults, metrics=Metrics(model_name="tiny")))
    names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
    for fields, expected in (
        ({}, (0.3, 5, 0.9, 0.1, 1.3)),
        (dict.fromkeys(names), (0.3, 5, 0.9, 0.1, 1.3)),
        (dict(zip(names, (1, -1, 1, 0, 1), strict=True)), (1, 0, 1, 0, 1)),
        ({"temperature": 0, "top_k": 0}, (0, 0, 0.9, 0.1, 1.3)),
    ):
        body = chat() | {"temperature": None} | fields
        assert call(app, CHAT, body).status == 200
        params = engine.streams[-1].request.params
        assert tuple(getattr(params, name) for name in names) == expected


def test_priority_needs_its_policy(engine: FakeEngineClient) -> None:
    app = create_app(make_state(engine, accepts_priority=True))
    assert call(app, CHAT, chat(priority=-3)).status == 200
    assert engine.streams[0].request.priority == -3


def test_errors_parse_strictly(app: Any) -> None:
    answer = call(app, CHAT, b'{"messages":[{"role":"user","content":"x"}],"' + b"k" * 5000 + b'":1}')
    assert answer.status == 400
    assert len(answer.body) < 2000
    strict_json(answer.body)
