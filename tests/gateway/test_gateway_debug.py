"""GET /debug/requests: who may ask, and what the answer says of requests in every state."""

import asyncio
from typing import Any

import msgspec
import pytest
from gateway_fakes import FakeEngineClient, make_state
from test_engine_client import Engine, on_a_loop
from test_gateway_lifecycle import ask
from test_gateway_tenants import as_, made, tenant
from test_relay import GatewayEnd, Server, demand, request, through

from gateway.engine_stream import EngineStream, GenerationRequest
from gateway.request_history import RequestHistory, Wait
from gateway.request_view import MOST_ROWS, RequestState, RequestsView, RequestView, encode_view, summarize
from ipc.codec import pack_ids
from ipc.desk import Answer, Question
from ipc.messages import (
    MOST_WAITING_REQUESTS,
    Accepted,
    Event,
    EventKind,
    Output,
    Outputs,
    Stats,
    WaitReason,
)
from ipc.params import SamplingParams

PATH = "/debug/requests"


# ---- who may ask


def test_scopes(engine: FakeEngineClient) -> None:
    _, state = made(engine, tenant("user"), tenant("root", scopes=("inference", "admin")))
    for name, status in (("user", 403), ("root", 200), ("nobody", 401)):
        headers = {key.decode(): value.decode() for key, value in as_(name)}
        assert ask(state, "GET", PATH, client=("10.0.0.7", 1), headers=headers).status_code == status
        if status == 403:
            assert ask(state, "GET", "/debug/other", headers=headers).status_code == status


@pytest.mark.parametrize(
    ("host", "headers", "status"),
    [
        ("127.0.0.1", {}, 200),
        ("127.0.0.1", {"Sec-Fetch-Site": "same-origin"}, 200),
        ("127.0.0.1", {"Sec-Fetch-Site": "cross-site"}, 403),
        ("127.0.0.1", {"Origin": "https://page.example"}, 403),
        ("10.0.0.7", {}, 403),
    ],
)
def test_without_keys_only_this_machine_may_ask(host: str, headers: dict[str, str], status: int) -> None:
    answer = ask(make_state(FakeEngineClient()), "GET", PATH, client=(host, 1), headers=headers)
    assert answer.status_code == status
    if status == 403:
        assert answer.json()["error"]["code"] == "insufficient_scope"


def test_an_idle_server() -> None:
    answer = ask(make_state(FakeEngineClient()), "GET", PATH).json()
    assert answer["data"] == []
    assert answer["summary"]["num_running"] == answer["summary"]["num_waiting"] == 0
    assert answer["summary"]["predicted_queue_wait_seconds"] == 0


# ---- states


def blocked(reason: WaitReason, time_ns: int) -> Event:
    return (EventKind.BLOCKED, time_ns, reason)


@pytest.mark.parametrize(
    ("events", "wait", "num_preemptions"),
    [
        ([], None, 0),
        ([(EventKind.QUEUED, 1, 0)], Wait("policy", 1), 0),
        ([(EventKind.QUEUED, 1, 0), (EventKind.ADMITTED, 8, 0)], Wait("policy", 1, 8), 0),
        ([(EventKind.QUEUED, 1, 0), blocked(WaitReason.KV_BLOCKS, 5)], Wait("kv_blocks", 1), 0),
        ([blocked(WaitReason.KV_BLOCKS, 5)], Wait("kv_blocks", 5), 0),
        ([blocked(WaitReason.KV_BLOCKS, 5), (EventKind.ADMITTED, 8, 0)], Wait("kv_blocks", 5, 8), 0),
        ([blocked(WaitReason.POLICY, 5), blocked(WaitReason.KV_BLOCKS, 6)], Wait("kv_blocks", 5), 0),
        ([(EventKind.PREEMPTED, 7, 3)], Wait("preempted", 7), 1),
        ([(EventKind.PREEMPTED, 7, 3), (EventKind.RESUMED, 9, 0)], Wait("preempted", 7, 9), 1),
        ([(EventKind.PREEMPTED_BY_SWAP, 7, 3), blocked(WaitReason.KV_BLOCKS, 8)], Wait("kv_blocks", 7), 1),
        ([blocked(WaitReason.GRAMMAR, 1), (EventKind.GRAMMAR_READY, 4, 0)], Wait("policy", 1), 0),
        ([blocked(WaitReason.GRAMMAR, 1), (EventKind.ADMITTED, 2, 0), blocked(WaitReason.FORK, 4)], Wait("fork", 4), 0),
    ],
)
def test_history(events: list[Event], wait: Wait | None, num_preemptions: int) -> None:
    history = RequestHistory()
    history.observe(events)
    assert (history.wait, history.num_preemptions) == (wait, num_preemptions)


def views(engine: Engine) -> list[RequestView]:
    return engine.client.requests()


def states(engine: Engine) -> list[tuple[str, str]]:
    """State and reason of each."""
    return [(view.state.value, view.wait.reason if view.wait else "") for view in views(engine)]


def submit(engine: Engine, **fields: Any) -> EngineStream:
    params = SamplingParams(max_tokens=fields.pop("max_tokens", 9))
    return engine.client.submit(GenerationRequest("tiny", [5, 6, 7], params, arrival_ns=1, **fields))


def send(engine: Engine, stream: EngineStream, *events: Event, tokens: int = 1, time_ns: int = 10**9) -> None:
    output = Output(stream.request_id, 0, pack_ids([3] * tokens), events=tuple(events), num_cached_tokens=2)
    engine.connection.receive(Outputs(1, time_ns, (output,)))


@on_a_loop
async def test_a_request_that_waits_and_then_runs() -> None:
    engine = Engine(clock=lambda: 3 * 10**9)
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    stream = submit(engine, n=2, tenant="a", priority=4, traceparent=trace, deadline_ns=8 * 10**9)
    (view,) = views(engine)
    assert (view.state, view.wait and view.wait.reason) == (RequestState.WAITING, "queue")
    assert (view.id, view.trace_id) == (f"{stream.request_id:016x}", "0af7651916cd43dd8448eb211c80319c")
    assert (view.tenant, view.model, view.priority, view.prompt_tokens, view.max_tokens) == ("a", "tiny", 4, 3, 9)
    assert view.time_to_first_token_seconds is view.tokens_per_second is None
    assert view.deadline_seconds == 5
    send(engine, stream, blocked(WaitReason.KV_BLOCKS, 10), (EventKind.ADMITTED, 2 * 10**9, 0), tokens=4)
    (view,) = views(engine)
    assert (view.state, view.wait) == (RequestState.RUNNING, None)
    assert view.last_wait is not None
    assert (view.last_wait.reason, view.last_wait.seconds) == ("kv_blocks", 2.0)
    assert [choice.output_tokens for choice in view.choices] == [4, 0]
    assert (view.output_tokens, view.cached_tokens, view.time_to_first_token_seconds) == (4, 2, 1.0)
    assert (view.age_seconds, view.tokens_per_second) == (3.0, 1.0)  # of each choice the first is not counted
    send(engine, stream, (EventKind.PREEMPTED, 3 * 10**9, 1), (EventKind.RESUMED, 5 * 10**9, 1), time_ns=5 * 10**9)
    (view,) = views(engine)
    assert (view.state, view.num_preemptions, view.time_to_first_token_seconds) == (RequestState.RUNNING, 1, 1.0)
    assert view.last_wait is not None
    assert (view.last_wait.reason, view.last_wait.seconds) == ("preempted", 2.0)
    stream.abort()
    assert views(engine) == []


def report(engine: Engine, *waits: tuple[int, WaitReason, int]) -> None:
    """What the engine says that requests wait for."""
    engine.connection.receive(Stats(1, 1, waiting_requests=tuple((*wait,) for wait in waits)))


@on_a_loop
async def test_what_the_engine_says_of_those_that_wait() -> None:
    engine = Engine()
    first, second = submit(engine), submit(engine)
    for stream in (first, second):
        engine.connection.receive(Accepted(stream.request_id))
    assert states(engine) == [("waiting", "queue")] * 2  # not reported yet
    report(engine, (second.request_id, WaitReason.SEQUENCE_SLOTS, 5))
    assert states(engine) == [("running", ""), ("waiting", "sequence_slots")]  # the first one's prompt is computed
    late = submit(engine)
    report(engine, (second.request_id, WaitReason.SEQUENCE_SLOTS, 5))
    assert states(engine)[2] == ("waiting", "queue")  # the engine may not know it
    late.abort()
    send(engine, first, time_ns=20)
    send(engine, second, time_ns=20)
    assert states(engine) == [("running", "")] * 2  # the report is older than that
    report(engine, (first.request_id, WaitReason.KV_BLOCKS, 30))
    assert states(engine) == [("waiting", "kv_blocks"), ("running", "")]
    engine.client.lose({}, was_killed=True)
    engine.connect()
    assert states(engine) == [("resuming", "")] * 2
    report(engine, (first.request_id, WaitReason.POLICY, 30))
    assert states(engine) == [("resuming", "policy"), ("resuming", "")]


@on_a_loop
async def test_a_report_that_is_full_does_not_tell_who_runs() -> None:
    engine = Engine()
    stream = submit(engine)
    engine.connection.receive(Accepted(stream.request_id))
    report(engine, *((number, WaitReason.POLICY, 5) for number in range(MOST_WAITING_REQUESTS)))
    assert states(engine) == [("waiting", "queue")]


@on_a_loop
async def test_requests_whose_engine_dies() -> None:
    engine = Engine()
    begun, suspect, fresh = (submit(engine) for _ in range(3))
    send(engine, begun)
    for _ in range(2):  # the second time it is held back: it had no output since
        engine.client.lose({suspect.request_id: True}, was_killed=True)
        late = submit(engine)
        assert states(engine)[:1] == [("resuming", "engine")]
        assert states(engine)[2:] == [("waiting", "engine")] * 2
        late.abort()
        engine.connect()
        assert states(engine) == [("resuming", ""), ("held", "quarantine"), ("waiting", "queue")]
    send(engine, begun)
    assert states(engine) == [("running", ""), ("waiting", "queue"), ("waiting", "queue")]
    assert [view.num_restarts for view in views(engine)] == [2, 1, 2]  # engines that it was given to again
    assert views(engine)[0].output_tokens == 2
    fresh.abort()


# ---- the answer


def test_the_oldest_come_first_and_the_summary_counts_all() -> None:
    async def make() -> list[RequestView]:
        engine = Engine()
        for arrival in range(MOST_ROWS + 5):
            engine.client.submit(GenerationRequest("m", [1], SamplingParams(), arrival_ns=arrival * 10**6))
        return list(reversed(views(engine)))

    found = asyncio.run(make())
    stats = Stats(1, 1, num_blocks=8, num_free_blocks=6, num_cached_blocks=3, waiting_by_reason=((1, 4), (3, 2)))
    summary = summarize(found, stats, is_connected=True, num_queued_tokens=7, wait_seconds=1.5, num_expected=2)
    answer = msgspec.json.decode(encode_view(found, summary), type=RequestsView)
    ages = [request.age_seconds for request in answer.data]
    assert len(ages) == MOST_ROWS
    assert ages == sorted(ages, reverse=True)
    assert answer.summary.num_waiting == MOST_ROWS + 5
    assert answer.summary.waiting_by_reason == {"kv_blocks": 4, "policy": 2}
    assert (answer.summary.kv_cache_usage, answer.summary.num_cached_kv_blocks) == (0.25, 3)


@on_a_loop
async def test_several_gateways_ask_the_one_that_knows() -> None:
    server = Server(asyncio.get_running_loop())
    gateways = [GatewayEnd(server) for _ in range(2)]
    for gateway in gateways:
        visit = await through(gateway, gateway.desk.enter(gateway.tenants.by_name("a"), demand()))
        gateway.client.submit(request(visit))
        gateway.deliver()
    asked = asyncio.ensure_future(gateways[0].desk.requests())
    await asyncio.sleep(0)
    question = gateways[0].to_server.pop()
    assert isinstance(question, Question)
    assert question.about == "requests"
    gateways[0].desk.receive(Answer(question.number, server.desk.requests()))
    answer = msgspec.json.decode(await asked, type=RequestsView)
    assert [view.state for view in answer.data] == [RequestState.WAITING] * 2
    assert answer.summary.num_waiting == 2
