"""Tenants over HTTP: keys and scopes, limits and their headers, what reaches the engine, and the usage."""

import asyncio
import hashlib
from typing import Any

import pytest
from gateway_fakes import CHAT, COMP, AsgiCall, FakeEngineClient, call, chat, comp, ids, make_state

from gateway.app import create_app
from gateway.state import GatewayState
from gateway.tenants import MAX_LABELS, OTHER_LABEL, Tenants
from ipc.config import TenantConfig


def hashed(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def tenant(name: str, **fields: Any) -> TenantConfig:
    return TenantConfig(name=name, keys=(hashed(f"key-of-{name}"),), **fields)


def as_(name: str) -> list[tuple[bytes, bytes]]:
    return [(b"authorization", f"Bearer key-of-{name}".encode())]


def made(engine: FakeEngineClient, *tenants: TenantConfig, **changes: Any) -> tuple[Any, GatewayState]:
    state = make_state(engine, tenant_configs=tenants, **changes)
    return create_app(state), state


def test_scopes(engine: FakeEngineClient) -> None:
    tenants = (
        tenant("user"),
        tenant("prometheus", scopes=("metrics",)),
        tenant("root", scopes=("inference", "metrics", "admin")),
    )
    app, _ = made(engine, *tenants, config={"api_key": ("plain",)})
    allowed = {
        "user": {CHAT, "/v1/models", "/version"},
        "prometheus": {"/metrics"},
        "root": {CHAT, "/v1/models", "/version", "/metrics", "/admin/usage"},
    }
    for name, paths in allowed.items():
        for path in (CHAT, "/v1/models", "/version", "/metrics", "/admin/usage", "/admin/other", "/admin"):
            method = "POST" if path == CHAT else "GET"
            answer = call(app, path, chat(), method=method, headers=as_(name))
            if path in paths:
                assert answer.status == 200, (name, path)
            elif not (name == "root" and path.startswith("/admin")):
                assert answer.status == 403, (name, path)
                assert answer.json["error"]["code"] == "insufficient_scope"
    for path in ("/metrics", "/admin/usage"):
        assert call(app, path, method="GET").status == 401
        assert call(app, path, method="GET", headers=as_("nobody")).status == 401
        assert call(app, path, method="GET", headers=[(b"authorization", b"Bearer plain")]).status == 200
    # A hash is no key.
    assert call(app, CHAT, chat(), headers=[(b"authorization", b"Bearer " + hashed("plain").encode())]).status == 401
    assert call(app, "/health", method="GET").status == 200


def test_what_the_engine_is_told(engine: FakeEngineClient) -> None:
    app, _ = made(engine, tenant("a", weight=2.5, priority_cap=3), tenant("b"), accepts_priority=True)
    for name, priority in (("a", 1), ("a", 7), ("b", -5)):
        assert call(app, COMP, comp(priority=priority), headers=as_(name)).status == 200
    told = [(s.request.tenant, s.request.weight, s.request.priority) for s in engine.streams]
    assert told == [("a", 2.5, 3), ("a", 2.5, 7), ("b", 1.0, -5)]


def test_requests_at_once(engine: FakeEngineClient) -> None:
    app, _ = made(engine, tenant("a", concurrent_requests=1), tenant("b"))
    engine.answer("Hello", hold_after=1)

    async def scenario() -> None:
        first = AsgiCall(app, CHAT, chat(stream=True), headers=as_("a")).start()
        await first.until_sent(1)
        assert first.headers["x-ratelimit-limit-requests"] == "1"
        assert first.headers["x-ratelimit-remaining-requests"] == "0"
        second = await AsgiCall(app, CHAT, chat(), headers=as_("a")).run()
        assert second.status == 429
        assert int(second.headers["retry-after"]) >= 1
        assert second.headers["x-ratelimit-remaining-requests"] == "0"
        assert second.headers["x-ratelimit-reset-requests"] != "0ms"
        assert "x-ratelimit-limit-tokens" not in second.headers
        other = AsgiCall(app, CHAT, chat(stream=True), headers=as_("b")).start()
        await other.until_sent(1)
        assert (other.status, "x-ratelimit-limit-requests" in other.headers) == (200, False)
        for exchange in (first, other):
            exchange.disconnect()
            await exchange.ended()

    asyncio.run(scenario())
    engine.answer("Hello")
    again = call(app, CHAT, chat(), headers=as_("a"))
    assert again.status == 200
    assert again.headers["x-ratelimit-remaining-requests"] == "0"  # this one


def test_tokens_per_minute(engine: FakeEngineClient) -> None:
    """An estimate is taken, what was used is settled; a bad request costs nothing."""
    app, state = made(engine, tenant("a", tokens_per_minute=100))
    engine.answer("Hello, world")
    first = call(app, COMP, comp([5] * 40, max_tokens=20), headers=as_("a"))
    assert first.status == 200
    assert first.headers["x-ratelimit-limit-tokens"] == "100"
    assert 35 <= int(first.headers["x-ratelimit-remaining-tokens"]) <= 60
    assert first.headers["x-ratelimit-reset-tokens"].endswith("s")
    used = first.json["usage"]["total_tokens"]
    (tenant_a,) = state.tenants.all[1:]
    bucket = tenant_a._bucket
    assert bucket is not None
    assert bucket._level == pytest.approx(100 - used, abs=1)
    assert call(app, COMP, comp([5] * 30, temperature="hot"), headers=as_("a")).status == 400
    assert bucket._level == pytest.approx(100 - used, abs=1)
    refused = call(app, COMP, comp([5] * 60, max_tokens=20), headers=as_("a"))
    assert refused.status == 429
    # What is missing comes at 100 a minute.
    assert 10 <= int(refused.headers["retry-after"]) <= 25
    again = call(app, COMP, comp([5] * 60, max_tokens=20), headers=as_("a"))
    assert int(again.headers["retry-after"]) > int(refused.headers["retry-after"]) + 30
    lines = call(app, "/admin/usage", method="GET", headers=as_("a"))
    assert lines.status == 403


def test_usage(engine: FakeEngineClient) -> None:
    root = tenant("root", scopes=("inference", "metrics", "admin"))
    app, _ = made(engine, tenant("a"), root)
    engine.answer("Hello, world", num_cached=2)
    num_output = len(ids("Hello, world")) + 1
    for _ in range(2):
        answer = call(app, COMP, comp(n=2, max_tokens=100, return_cost=True), headers=as_("a"))
        cost = answer.json["usage"]["cost"]
        assert set(cost) == {"device_seconds", "kv_block_seconds"}
        assert cost["device_seconds"] == pytest.approx(2 * 0.25)
        assert cost["kv_block_seconds"] == pytest.approx(2 * 1.5)
    assert "cost" not in call(app, COMP, comp(), headers=as_("root")).json["usage"]
    report = call(app, "/admin/usage", method="GET", headers=as_("root")).json
    assert report["object"] == "list"
    rows = {row["tenant"]: row for row in report["data"]}
    assert list(rows) == ["default", "a", "root"]
    assert rows["a"] == {
        "tenant": "a",
        "requests": 2,
        "prompt_tokens": 2 * len(ids("hi")),
        "cached_tokens": 4,
        "output_tokens": 4 * num_output,
        "device_seconds": pytest.approx(1.0),
        "kv_block_seconds": pytest.approx(6.0),
    }
    assert rows["default"]["requests"] == 0
    lines = call(app, "/metrics", method="GET", headers=as_("root")).body.decode().splitlines()
    own = 'engine="0",model_name="tiny",tenant="a"'
    assert f"octavo:tenant_requests_total{{{own}}} 2.0" in lines
    assert f"octavo:tenant_generation_tokens_total{{{own}}} {4.0 * num_output}" in lines
    assert f"octavo:tenant_device_seconds_total{{{own}}} 1.0" in lines


def test_the_cost_of_a_stream(engine: FakeEngineClient) -> None:
    app, _ = made(engine)
    usage = {"stream_options": {"include_usage": True}}
    answer = call(app, CHAT, chat(stream=True, return_cost=True, **usage))
    assert answer.events[-2]["usage"]["cost"]["device_seconds"] == pytest.approx(0.25)
    refused = call(app, CHAT, chat(stream=True, return_cost=True))
    assert (refused.status, refused.json["error"]["param"]) == (400, "return_cost")


def test_labels_are_bounded() -> None:
    tenants = Tenants([TenantConfig(name=f"t{index}", keys=(hashed(str(index)),)) for index in range(300)])
    for one in tenants.all:
        one.usage.num_requests = 1
    usage = tenants.usage_by_label()
    assert len(usage) == MAX_LABELS + 2
    assert usage[OTHER_LABEL].num_requests == 300 - MAX_LABELS
    assert sum(one.num_requests for one in usage.values()) == 301
