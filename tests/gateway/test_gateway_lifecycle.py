"""Draining by request, and pages of other origins."""

import asyncio
from typing import Any

import httpx
import pytest
from gateway_fakes import COMP, FakeEngineClient, comp, make_state

from gateway.app import create_app
from gateway.state import GatewayState

ORIGIN = {"Origin": "https://page.example"}


def ask(
    state: GatewayState, method: str, path: str, *, client: tuple[str, int] = ("127.0.0.1", 1), **options: Any
) -> httpx.Response:
    async def exchange() -> httpx.Response:
        transport = httpx.ASGITransport(create_app(state), client=client)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
            return await http.request(method, path, **options)

    return asyncio.run(exchange())


def test_draining_flips_readiness_and_refuses_what_is_new() -> None:
    state = make_state(FakeEngineClient())
    assert ask(state, "GET", "/health").status_code == 200
    for _ in range(2):
        answer = ask(state, "POST", "/admin/drain")
        assert (answer.status_code, answer.json()) == (200, {"status": "draining", "in_flight": 0})
    for answer in (ask(state, "GET", "/health/ready"), ask(state, "POST", COMP, json=comp())):
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "draining")
        assert "retry-after" in answer.headers
    assert ask(state, "GET", "/health/live").status_code == 200


@pytest.mark.parametrize(
    ("client", "headers"),
    [(("10.0.0.7", 1), {}), (("127.0.0.1", 1), ORIGIN), (("::ffff:10.0.0.7", 1), {}), (("nonsense", 1), {})],
)
def test_without_keys_only_this_machine_may_drain(client: tuple[str, int], headers: dict[str, str]) -> None:
    state = make_state(FakeEngineClient())
    answer = ask(state, "POST", "/admin/drain", client=client, headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "insufficient_scope")
    assert not state.desk.is_draining


@pytest.mark.parametrize("host", ["::1", "127.0.0.9", ""])
def test_this_machine(host: str) -> None:
    state = make_state(FakeEngineClient())
    assert ask(state, "POST", "/admin/drain", client=(host, 1)).status_code == 200
    assert state.desk.is_draining


def test_pages_of_other_origins_may_call_only_if_a_flag_says_so() -> None:
    preflight = {**ORIGIN, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    assert (
        "access-control-allow-origin"
        not in ask(make_state(FakeEngineClient()), "OPTIONS", COMP, headers=preflight).headers
    )
    config = {"allowed_origins": ("https://page.example",), "api_key": ("secret",)}
    state = make_state(FakeEngineClient(), config=config)
    answer = ask(state, "OPTIONS", COMP, headers=preflight)
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == "https://page.example"
    assert "authorization" in answer.headers["access-control-allow-headers"]
    refused = ask(state, "POST", COMP, json=comp(), headers=ORIGIN)  # without a key: the page may read why
    assert refused.status_code == 401
    assert refused.headers["access-control-allow-origin"] == "https://page.example"
    other = ask(state, "OPTIONS", COMP, headers={**preflight, "Origin": "https://other.example"})
    assert "access-control-allow-origin" not in other.headers
