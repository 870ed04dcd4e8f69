"""Deadlines over HTTP: what asks for one, and what the client is told when it was missed."""

import asyncio
from typing import Any

import pytest
from gateway_fakes import CHAT, COMP, AsgiCall, FakeEngineClient, call, chat, comp, ids, make_state

from gateway.app import create_app
from ipc.messages import FinishReason
from observability.metrics import Metrics

both = pytest.mark.parametrize(("path", "make"), [(CHAT, chat), (COMP, comp)])
LATE: dict[str, Any] = {"finish": FinishReason.DEADLINE}


def ended_late(metrics: Metrics) -> bool:
    return 'request_success_total{engine="0",finished_reason="deadline",model_name="tiny"} 1.0' in (
        metrics.render().decode()
    )


@pytest.mark.parametrize(
    ("fields", "header", "milliseconds"),
    [
        ({}, None, None),
        ({"deadline_ms": None}, None, None),
        ({"deadline_ms": 1}, None, 1),
        ({"deadline_ms": 86_400_000}, None, 86_400_000),
        ({}, "2", 2000),
        ({}, " 0.25 ", 250),
        ({}, "86400", 86_400_000),
        ({"deadline_ms": 100}, "2", 100),
        ({"deadline_ms": 5000}, "2.5", 2500),
    ],
)
@both
def test_a_deadline_counts_from_the_arrival(
    engine: FakeEngineClient,
    app: Any,
    path: str,
    make: Any,
    fields: dict[str, Any],
    header: str | None,
    milliseconds: Any,
) -> None:
    headers = [] if header is None else [(b"x-request-timeout", header.encode())]
    assert call(app, path, make(**fields), headers=headers).status == 200
    request = engine.streams[0].request
    assert request.deadline_ns == (0 if milliseconds is None else request.arrival_ns + milliseconds * 1_000_000)


@pytest.mark.parametrize("value", [0, -1, 86_400_001, 1.5, "1"])
def test_a_senseless_deadline_is_refused_by_name(app: Any, value: Any) -> None:
    answer = call(app, COMP, comp(deadline_ms=value))
    assert answer.status == 400
    assert answer.json["error"]["param"] == "deadline_ms"


@pytest.mark.parametrize("value", ["", "0", "-1", "86400.1", "1e3", "nan", "inf", "1s", "0x1", "1,5", "9" * 400])
def test_a_senseless_timeout_is_refused_by_name(app: Any, value: str) -> None:
    answer = call(app, COMP, comp(), headers=[(b"x-request-timeout", value.encode())])
    assert answer.status == 400
    assert answer.json["error"]["param"] == "X-Request-Timeout"


@both
@pytest.mark.parametrize("stream", [False, True])
def test_nothing_in_time_is_408_and_not_to_be_asked_again(
    engine: FakeEngineClient, path: str, make: Any, stream: bool
) -> None:
    metrics = Metrics(model_name="tiny")
    app = create_app(make_state(engine, metrics=metrics))
    engine.answer([], **LATE)
    answer = call(app, path, make(deadline_ms=5, n=2, stream=stream))
    assert answer.status == 408
    assert answer.headers["x-should-retry"] == "false"
    assert answer.json["error"]["code"] == "deadline_exceeded"
    assert answer.json["error"]["type"] == "timeout_error"
    assert ended_late(metrics)


@both
def test_what_was_streamed_ends_with_its_own_reason(engine: FakeEngineClient, app: Any, path: str, make: Any) -> None:
    engine.answer("ab", **LATE)
    answer = call(app, path, make(deadline_ms=5, stream=True))
    assert answer.status == 200
    assert answer.events[-1] == "[DONE]"
    reasons = [choice["finish_reason"] for event in answer.events[:-1] for choice in event["choices"]]
    assert [reason for reason in reasons if reason] == ["deadline"]
    choices = [choice for event in answer.events[:-1] for choice in event["choices"]]
    assert "".join(choice.get("text", choice.get("delta", {}).get("content", "")) or "" for choice in choices) == "ab"


def test_a_whole_answer_that_came_in_part_is_408(engine: FakeEngineClient, app: Any) -> None:
    """Nothing of it was sent."""
    engine.answer("ab", **LATE)
    assert call(app, CHAT, chat(deadline_ms=5)).status == 408


def test_a_choice_that_ended_by_itself_is_sent_and_the_other_says_why_not(engine: FakeEngineClient, app: Any) -> None:
    """The reply of the first choice is cut off at max_tokens, that of the second ends at its deadline."""
    engine.answer("abc", "a", **LATE)
    answer = call(app, COMP, comp(deadline_ms=5, n=2, max_tokens=2))
    assert answer.status == 200
    assert [choice["finish_reason"] for choice in answer.json["choices"]] == ["length", "deadline"]


def test_a_stream_without_news_begins_when_its_client_should_hear_something(engine: FakeEngineClient) -> None:
    """Connections that say nothing are cut: the headers do not wait for the deadline."""
    app = create_app(make_state(engine, config={"sse_keep_alive_interval": 0.01}))
    engine.answer(ids("ab"), hold_after=0)

    async def scenario() -> None:
        exchange = AsgiCall(app, CHAT, chat(deadline_ms=60_000, stream=True)).start()
        await exchange.until_sent(1)
        assert exchange.status == 200
        exchange.disconnect()
        await exchange.ended()

    asyncio.run(scenario())
