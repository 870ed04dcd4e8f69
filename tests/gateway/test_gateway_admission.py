"""429 and 503 as clients see them, and that places come back however a request ends."""

import asyncio
import json
import time
from typing import Any

import pytest
from gateway_fakes import CHAT, COMP, AsgiCall, FakeEngineClient, call, chat, comp, make_state

from gateway.app import create_app
from gateway.state import GatewayState
from ipc.errors import EngineError


def made(engine: FakeEngineClient, **config: Any) -> tuple[Any, GatewayState]:
    state = make_state(engine, config=config)
    return create_app(state), state


def is_refusal(answer: AsgiCall) -> bool:
    assert answer.status == 429
    error = answer.json["error"]
    assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")
    assert int(answer.headers["retry-after"]) >= 1
    assert answer.headers["retry-after"] in error["message"]
    return "x-request-id" in answer.headers


def test_more_at_once_than_there_are_places(engine: FakeEngineClient) -> None:
    """To come again would be no use: it is the client's to ask for less."""
    app, state = made(engine, max_num_queued_reqs=4)
    bodies = ((comp(n=5), "n"), (comp(["a", "b", "c"], n=2), "n"), (comp(["a"] * 5), "prompt"), (comp(best_of=5), "n"))
    for body, param in bodies:
        answer = call(app, COMP, body)
        error = answer.json["error"]
        assert (answer.status, error["code"], error["param"]) == (400, "too_many_sequences", param)
        assert "at most 4" in error["message"]
    assert call(app, CHAT, chat(n=5)).status == 400
    assert call(app, COMP, comp(n=4)).status == 200
    assert state.desk.front.admission.num_sequences == 0


def test_a_full_queue(engine: FakeEngineClient) -> None:
    """n counts n; who left gives its places back; no refused request reaches the tokenizer, not even a bad one."""
    app, state = made(engine, max_num_queued_reqs=4)
    engine.answer("Hello", hold_after=1)

    async def scenario() -> None:
        first = AsgiCall(app, COMP, comp(n=3, stream=True)).start()
        await first.until_sent(1)
        second = AsgiCall(app, CHAT, chat(stream=True)).start()
        await second.until_sent(1)
        assert state.desk.front.admission.num_sequences == 4
        for path, body in ((CHAT, chat()), (COMP, comp()), (COMP, b"{not json"), (CHAT, chat(model="nope"))):
            assert is_refusal(await AsgiCall(app, path, body).run())
        first.disconnect()
        await first.ended()
        assert state.desk.front.admission.num_sequences == 1
        third = AsgiCall(app, COMP, comp(["a", "b", "c"], stream=True)).start()
        await third.until_sent(1)
        assert is_refusal(await AsgiCall(app, COMP, comp()).run())
        for exchange in (second, third):
            exchange.disconnect()
            await exchange.ended()

    asyncio.run(scenario())
    assert state.desk.front.admission.num_sequences == 0
    lines = call(app, "/metrics", method="GET").body.decode().splitlines()
    own = 'engine="0",model_name="tiny"'
    assert f'octavo:requests_refused_total{{{own},reason="queued_reqs"}} 5.0' in lines
    assert f"octavo:num_requests_in_flight{{{own}}} 0.0" in lines
    assert f"octavo:num_requests_expected{{{own}}} 5.0" in lines


@pytest.mark.parametrize(
    ("body", "script"),
    [
        (comp(), {}),
        (comp(stream=True), {}),
        (comp(max_tokens=10**6), {}),
        (comp(model="nope"), {}),
        (b"{not json", {}),
        (comp(), {"refusal": EngineError("gone")}),
        (comp(stream=True), {"hold_after": 1, "failure": EngineError("gone")}),
    ],
)
def test_places_come_back_however_it_ends(engine: FakeEngineClient, body: Any, script: dict[str, Any]) -> None:
    app, state = made(engine, max_num_queued_reqs=1)
    engine.answer("Hello", **script)
    for _ in range(3):
        assert call(app, COMP, body).status != 429
        assert state.desk.front.admission.num_sequences == 0


def test_a_client_that_never_sends_its_body_holds_no_place(engine: FakeEngineClient) -> None:
    app, state = made(engine, max_num_queued_reqs=1)

    async def scenario() -> None:
        exchange = AsgiCall(app, COMP, comp())
        exchange._incoming.get_nowait()
        exchange.start()
        await asyncio.sleep(0)
        assert state.desk.front.admission.num_sequences == 0
        exchange.disconnect()
        await exchange.ended()

    asyncio.run(scenario())


def test_too_many_prompt_tokens_wait(engine: FakeEngineClient) -> None:
    app, state = made(engine, max_num_queued_tokens=50)
    engine.answer("Hello", hold_after=0)

    async def scenario() -> None:
        first = AsgiCall(app, COMP, comp([5] * 60, stream=True)).start()
        await first.until_sent(1)
        assert is_refusal(await AsgiCall(app, COMP, comp([5] * 60)).run())
        first.disconnect()
        await first.ended()

    asyncio.run(scenario())
    assert state.desk.front.admission.num_sequences == 0


def test_503_comes_before_429(engine: FakeEngineClient) -> None:
    app, state = made(engine, max_num_queued_reqs=1)
    engine.answer("Hello", hold_after=1)

    async def scenario() -> None:
        first = AsgiCall(app, COMP, comp(stream=True)).start()
        await first.until_sent(1)
        state.desk.front.drain()
        answer = await AsgiCall(app, COMP, comp()).run()
        assert answer.status == 503
        assert int(answer.headers["retry-after"]) >= 1
        first.disconnect()
        await first.ended()

    asyncio.run(scenario())


def test_a_refusal_is_cheap(engine: FakeEngineClient) -> None:
    """A thousand of them with large bodies take less time than tokenizing a few of these would."""
    app, state = made(engine, max_num_queued_reqs=1)
    engine.answer("Hello", hold_after=1)
    large = json.dumps(comp("lighthouse " * 20_000)).encode()
    head = [(b"content-length", str(len(large)).encode())]

    async def scenario() -> float:
        first = AsgiCall(app, COMP, comp(stream=True)).start()
        await first.until_sent(1)
        started = time.process_time()
        for _ in range(1000):
            assert (await AsgiCall(app, COMP, large, headers=head).run()).status == 429
        took = time.process_time() - started
        first.disconnect()
        await first.ended()
        return took

    assert asyncio.run(scenario()) < 5.0
