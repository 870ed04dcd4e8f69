import asyncio
from typing import Any

import pytest
from gateway_fakes import CHAT, COMP, TOKENIZER, AsgiCall, FakeEngineClient, byte_id, call, chat, comp, ids

from gateway.state import GatewayState
from ipc.errors import CapacityError, EngineError, RequestError
from ipc.messages import FinishReason


def test_tokens_are_sent_when_they_come(app: Any, engine: FakeEngineClient) -> None:
    async def scenario() -> None:
        engine.answer("abc", hold_after=2)
        exchange = AsgiCall(app, CHAT, chat(stream=True)).start()
        await exchange.until_sent(3)  # headers, role and a, b
        contents = [event["choices"][0]["delta"].get("content") for event in exchange.events]
        assert contents == ["", "a", "b"]
        assert exchange.task is not None
        assert not exchange.task.done()
        exchange.disconnect()
        await exchange.ended()

    asyncio.run(scenario())


def test_headers_wait_for_the_engine(app: Any, engine: FakeEngineClient) -> None:
    async def scenario() -> None:
        engine.answer("abc", is_accepted=False)
        exchange = AsgiCall(app, CHAT, chat(stream=True)).start()
        for _ in range(20):
            await asyncio.sleep(0)
        assert exchange.sent == []
        exchange.disconnect()
        await exchange.ended()

    asyncio.run(scenario())


@pytest.mark.parametrize("path", [CHAT, COMP])
@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (CapacityError("the queue is full", retry_after=0.2), 429, "rate_limit_exceeded"),
        (EngineError("gone", code="not_ready", status=503), 503, "not_ready"),
        (EngineError("broken"), 500, "engine_error"),
        (RequestError("too long", param="prompt", code="impossible"), 400, "impossible"),
    ],
)
def test_refusals_are_the_same_in_both_modes(
    app: Any, engine: FakeEngineClient, path: str, error: Exception, status: int, code: str
) -> None:
    engine.answer("abc", refusal=error)
    body = chat() if path == CHAT else comp()
    whole, streamed = (call(app, path, body | {"stream": stream}) for stream in (False, True))
    assert whole.status == streamed.status == status
    assert whole.body == streamed.body
    assert whole.json["error"]["code"] == code
    assert ("retry-after" in whole.headers) == (status in (429, 503))


def test_failure_after_the_first_byte_is_one_error_event(
    app: Any, engine: FakeEngineClient, state: GatewayState
) -> None:
    engine.answer("abcdef", hold_after=3, failure=EngineError("the engine died", code="engine_dead"))
    answer = call(app, CHAT, chat(stream=True))
    assert answer.status == 200
    *chunks, last = answer.events
    assert last == {
        "error": {"message": "the engine died", "type": "server_error", "param": None, "code": "engine_dead"}
    }
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * 4
    assert answer.sent[-1]["more_body"] is False
    assert 'request_success_total{engine="0",finished_reason="error",model_name="tiny"} 1.0' in (
        state.metrics.render().decode()
    )
    whole = call(app, CHAT, chat())
    assert (whole.status, whole.json["error"]["code"]) == (500, "engine_dead")
    multiple = call(app, COMP, comp(["a", "b"], stream=True)).events
    assert [event for event in multiple if "error" in event] == [last]


def test_a_choice_that_failed_in_the_engine(app: Any, engine: FakeEngineClient) -> None:
    engine.answer("abc", finish=FinishReason.ERROR)
    assert call(app, CHAT, chat()).status == 500
    assert "error" in call(app, CHAT, chat(stream=True)).events[-1]


def test_an_error_of_one_text_ends_that_request_alone(
    app: Any, engine: FakeEngineClient, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> list[AsgiCall]:
        engine.answer("healthy")
        healthy = [AsgiCall(app, CHAT, chat(stream=True)).start() for _ in range(3)]
        await asyncio.sleep(0)
        engine.answer([*ids("ab"), 5000])
        broken = AsgiCall(app, CHAT, chat(stream=True)).start()
        calls = [*healthy, broken]
        await asyncio.gather(*(each.task for each in calls if each.task))
        return calls

    *healthy, broken = asyncio.run(scenario())
    for each in healthy:
        assert each.events[-1] == "[DONE]"
    assert broken.events[-1]["error"]["type"] == "server_error"
    assert engine.streams[-1].was_aborted
    assert call(app, "/health", method="GET").status == 200


def test_a_bug_after_the_headers_is_an_error_event(
    app: Any, engine: FakeEngineClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(self: object, token_ids: object) -> str:
        raise ZeroDivisionError("a secret of ours")

    monkeypatch.setattr("gateway.text.detokenizer.IncrementalDetokenizer.push", broken)
    engine.answer("abc")
    answer = call(app, CHAT, chat(stream=True))
    assert answer.events[-1]["error"]["code"] == "internal_error"
    assert "secret" not in answer.body.decode()
    whole = call(app, CHAT, chat())
    assert (whole.status, whole.json["error"]["code"]) == (500, "internal_error")
    assert "ZeroDivisionError" in caplog.text
    assert all(stream.has_left for stream in engine.streams)


def test_slow_reader_is_not_read_ahead_of(app: Any, engine: FakeEngineClient) -> None:
    """While ``send`` waits nothing is taken from the engine's stream, which merges what comes."""

    async def scenario() -> None:
        engine.answer("x" * 100)
        for body in (chat(stream=True), comp(["a", "b"], stream=True, max_tokens=100)):
            engine.streams.clear()
            exchange = AsgiCall(app, CHAT if "messages" in body else COMP, body).start()
            exchange.may_send.clear()
            for _ in range(200):
                await asyncio.sleep(0)
            assert max(stream.num_reads for stream in engine.streams) <= 2
            exchange.may_send.set()
            assert exchange.task is not None
            await exchange.task
            assert exchange.events[-1] == "[DONE]"

    asyncio.run(scenario())


def test_one_wakeup_is_one_send(app: Any, engine: FakeEngineClient) -> None:
    engine.answer("abcdefgh", tokens_per_output=9)
    answer = call(app, CHAT, chat(stream=True, n=4))
    bodies = [message for message in answer.sent if message["type"] == "http.response.body"]
    assert len(bodies) == 2  # everything of the wake-up, then [DONE]
    assert len(answer.events) == 4 * 2 + 1


def test_incomplete_bytes_make_no_empty_chunks(app: Any, engine: FakeEngineClient) -> None:
    engine.answer([byte_id(byte) for byte in "🙂".encode()])
    chunks = call(app, CHAT, chat(stream=True, max_tokens=4)).events[:-1]
    assert [chunk["choices"][0]["delta"].get("content") for chunk in chunks] == ["", "🙂"]


def test_text_is_valid_json_whatever_it_holds(app: Any, engine: FakeEngineClient) -> None:
    text = 'a"\\\n\x00\x1f\u2028é🙂</script>'
    engine.answer(text)
    events = call(app, CHAT, chat(stream=True, model="alias")).events
    assert "".join(event["choices"][0]["delta"].get("content", "") for event in events[:-1]) == text
    assert TOKENIZER.decode(ids(text), skip_special_tokens=True) == text
