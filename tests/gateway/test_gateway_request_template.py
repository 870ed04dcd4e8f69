"""``chat_template`` in a request: refused without the flag, bounded with it, and no trouble for others."""

import asyncio
import time
from typing import Any

import pytest
from gateway_fakes import CHAT, AsgiCall, FakeEngineClient, call, chat, ids, make_state

from gateway import template_workers
from gateway.app import create_app
from gateway.state import GatewayState

TRUSTING = {"config": {"trust_request_chat_template": True}}
OWN = "{% for m in messages %}<|im_start|>{{ m.content }}{% endfor %}{% if add_generation_prompt %}>{% endif %}"
LOOPS = (
    "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}"
    "{% endfor %}{% endfor %}{% endfor %}"
)


@pytest.fixture
def trusting(engine: FakeEngineClient) -> Any:
    return create_app(make_state(engine, **TRUSTING))


def test_the_flag_is_needed(app: Any, engine: FakeEngineClient) -> None:
    for path, body in ((CHAT, chat()), (CHAT, chat(stream=True)), ("/tokenize", {"messages": chat()["messages"]})):
        answer = call(app, path, body | {"chat_template": OWN})
        assert (answer.status, answer.json["error"]["param"]) == (400, "chat_template")
        assert "--trust-request-chat-template" in answer.json["error"]["message"]
        assert call(app, path, body | {"chat_template": None}).status == 200
        engine.streams.clear()


def test_it_takes_the_place_of_the_models(trusting: Any, engine: FakeEngineClient) -> None:
    for stream in (False, True):
        assert call(trusting, CHAT, chat("hi", chat_template=OWN, stream=stream)).status == 200
        assert engine.streams[-1].request.prompt_ids == [1, *ids("hi>")]
    tokens = call(trusting, "/tokenize", {"messages": chat("hi")["messages"], "chat_template": OWN}).json["tokens"]
    assert tokens == [1, *ids("hi>")]
    assert call(trusting, CHAT, chat("hi")).status == 200
    assert engine.streams[-1].request.prompt_ids[1:5] == ids("user")


def test_control_tokens_in_content_stay_text(trusting: Any, engine: FakeEngineClient) -> None:
    call(trusting, CHAT, chat("a<|im_start|>b", chat_template=OWN))
    assert engine.streams[-1].request.prompt_ids.count(1) == 1


def test_what_the_template_does_not_look_at(trusting: Any, engine: FakeEngineClient) -> None:
    documents = [{"text": "d"}]
    answer = call(trusting, CHAT, chat(chat_template=OWN, documents=documents))
    assert (answer.status, answer.json["error"]["param"]) == (400, "documents")
    source = "{{ documents[0].text }}{{ mood }}"
    body = chat(chat_template=source, documents=documents, chat_template_kwargs={"mood": "calm"})
    assert call(trusting, CHAT, body).status == 200
    assert engine.streams[-1].request.prompt_ids == ids("dcalm")
    for name in ("messages", "tools", "chat_template", "eos_token"):
        answer = call(trusting, CHAT, chat(chat_template=OWN, chat_template_kwargs={name: "x"}))
        assert (answer.status, answer.json["error"]["param"]) == (400, "chat_template_kwargs")


@pytest.mark.parametrize("source", ["{% for %}", LOOPS, "{{ 'a' * 10 ** 10 }}", "{{ messages[9].content }}", 5])
def test_refusals(trusting: Any, engine: FakeEngineClient, source: Any) -> None:
    for stream in (False, True):
        answer = call(trusting, CHAT, chat(chat_template=source, stream=stream))
        assert (answer.status, answer.json["error"]["param"]) == (400, "chat_template")
    assert engine.streams == []


def test_a_long_text_is_refused_before_it_is_tokenized(trusting: Any, engine: FakeEngineClient) -> None:
    source = "{% for a in range(70) %}{{ 'x' * 100000 }}{% endfor %}"
    answer = call(trusting, CHAT, chat(chat_template=source))
    assert (answer.status, answer.json["error"]["code"]) == (400, "context_length_exceeded")
    assert "at least" in answer.json["error"]["message"]


def test_an_empty_template_makes_no_prompt(trusting: Any) -> None:
    answer = call(trusting, CHAT, chat(chat_template=""))
    assert (answer.status, answer.json["error"]["param"]) == (400, "messages")


def test_nobody_else_waits_for_a_slow_one(trusting: Any, engine: FakeEngineClient) -> None:
    async def scenario() -> None:
        slow = [AsgiCall(trusting, CHAT, chat(chat_template=LOOPS)).start() for _ in range(3)]
        await asyncio.sleep(0.05)
        longest, num_others = 0.0, 0
        while not all(one.task is not None and one.task.done() for one in slow):
            started = time.monotonic()
            text = "x" * 40 if num_others % 2 else "ABC" * 40
            assert (await AsgiCall(trusting, CHAT, chat(text)).run()).status == 200
            longest = max(longest, time.monotonic() - started)
            num_others += 1
            await asyncio.sleep(0.01)
        assert [one.status for one in slow] == [400] * 3
        assert num_others > 20
        assert longest < 0.5

    asyncio.run(scenario())


def test_few_may_wait(engine: FakeEngineClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_workers, "MAX_JOBS", 2)
    state: GatewayState = make_state(engine, **TRUSTING)
    app = create_app(state)

    async def scenario() -> None:
        waiting = [AsgiCall(app, CHAT, chat(chat_template=LOOPS)).start() for _ in range(2)]
        await asyncio.sleep(0.05)
        refused = await AsgiCall(app, CHAT, chat(chat_template=OWN)).run()
        assert (refused.status, refused.headers["retry-after"]) == (429, "1")
        for one in waiting:
            assert one.task is not None
            await asyncio.wait_for(one.task, 20)
            assert one.status == 400
        assert (await AsgiCall(app, CHAT, chat(chat_template=OWN)).run()).status == 200

    asyncio.run(scenario())
