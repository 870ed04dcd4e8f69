"""A client that goes away aborts everything of its request, whatever state it is in."""

import asyncio
from typing import Any

import pytest
from gateway_fakes import CHAT, COMP, AsgiCall, FakeEngineClient, call, chat, comp

from gateway.disconnect import ClientDisconnected, cancel_on_disconnect
from gateway.state import GatewayState


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def finished(state: GatewayState, reason: str) -> float:
    text = state.metrics.render().decode()
    line = next(line for line in text.splitlines() if "request_success_total{" in line and f'"{reason}"' in line)
    return float(line.split()[-1])


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("script", [{"is_accepted": False}, {"hold_after": 0}, {"hold_after": 2}])
@pytest.mark.parametrize("path", [CHAT, COMP])
def test_disconnect_aborts(
    app: Any, engine: FakeEngineClient, state: GatewayState, path: str, script: dict[str, Any], stream: bool
) -> None:
    async def scenario() -> AsgiCall:
        engine.answer("abcdef", **script)
        body = chat(stream=stream) if path == CHAT else comp(["a", "b", "c"], n=2, stream=stream)
        exchange = AsgiCall(app, path, body).start()
        await settle()
        assert not any(fake.has_left for fake in engine.streams)
        exchange.disconnect()
        await exchange.ended()
        return exchange

    exchange = asyncio.run(scenario())
    count = 1 if path == CHAT else 3
    assert [fake.was_aborted for fake in engine.streams] == [True] * count
    assert finished(state, "abort") == count
    has_begun = stream and script != {"is_accepted": False}
    assert bool(exchange.sent) == has_begun
    assert not any(message.get("body") and b"error" in message["body"] for message in exchange.sent)


def test_disconnect_while_the_client_does_not_read(app: Any, engine: FakeEngineClient) -> None:
    async def scenario() -> None:
        engine.answer("abcdef")
        exchange = AsgiCall(app, CHAT, chat(stream=True)).start()
        await exchange.until_sent(2)
        exchange.may_send.clear()
        await settle()
        exchange.disconnect()
        await exchange.ended()

    asyncio.run(scenario())
    assert engine.streams[0].was_aborted


def test_cancellation_by_the_server_aborts(app: Any, engine: FakeEngineClient) -> None:
    async def scenario() -> None:
        engine.answer("abcdef", hold_after=2)
        exchange = AsgiCall(app, CHAT, chat(stream=True)).start()
        await exchange.until_sent(2)
        assert exchange.task is not None
        exchange.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await exchange.task

    asyncio.run(scenario())
    assert engine.streams[0].was_aborted


def test_one_refused_prompt_aborts_its_siblings(app: Any, engine: FakeEngineClient, state: GatewayState) -> None:
    from gateway_fakes import Script, ids

    from ipc.errors import CapacityError

    scripts = iter([Script([ids("a")]), Script([ids("b")], refusal=CapacityError("full", retry_after=2.2))])
    engine.script = lambda request: next(scripts)
    answer = call(app, COMP, comp(["a", "b"], stream=True))
    assert answer.status == 429
    assert answer.headers["retry-after"] == "3"
    assert answer.json["error"]["type"] == "rate_limit_error"
    assert all(fake.has_left for fake in engine.streams)


def test_the_watch_converts_only_its_own_cancellation() -> None:
    async def receive() -> dict[str, Any]:
        await asyncio.sleep(0)
        return {"type": "http.disconnect"}

    async def never() -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError

    async def watched(receive: Any) -> str:
        async with cancel_on_disconnect(receive):
            await asyncio.Event().wait()
        return "unreachable"

    async def scenario() -> None:
        with pytest.raises(ClientDisconnected):
            await watched(receive)
        current = asyncio.current_task()
        assert current is not None
        assert current.cancelling() == 0
        task = asyncio.create_task(watched(never))
        await settle()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with cancel_on_disconnect(never):
            pass
        with pytest.raises(KeyError):
            async with cancel_on_disconnect(never):
                raise KeyError

    asyncio.run(scenario())
