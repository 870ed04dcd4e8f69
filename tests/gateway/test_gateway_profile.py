"""POST /admin/profile/start and /stop: who may ask, what the engine is told, and how its answers look."""

import asyncio
from typing import Any

import msgspec
import pytest
from gateway_fakes import FakeEngineClient, make_state
from test_engine_client import Engine, on_a_loop
from test_gateway_lifecycle import ORIGIN, ask
from test_gateway_tenants import as_, made, tenant
from test_relay import GatewayEnd, Server

from ipc.desk import Answer, Question
from ipc.errors import EngineError
from ipc.messages import Profile, Profiled

START, STOP = "/admin/profile/start", "/admin/profile/stop"
FILES = ("/profiles/a.trace.json.gz", "/profiles/a.stacks.txt")


@pytest.fixture
def fake() -> FakeEngineClient:
    client = FakeEngineClient()
    client.profile_answer = Profiled(0, files=FILES, num_steps=50, seconds=60.0)
    return client


@pytest.mark.parametrize(
    ("body", "num_steps"), [(b"", 0), (b"{}", 0), (b'{"num_steps":50}', 50), (b'{"num_steps":null}', 0)]
)
def test_start(fake: FakeEngineClient, body: bytes, num_steps: int) -> None:
    answer = ask(make_state(fake), "POST", START, content=body)
    assert (answer.status_code, answer.json()) == (
        200,
        {"status": "started", "files": list(FILES), "num_steps": 50, "max_seconds": 60.0},
    )
    assert [(one.action, one.num_steps) for one in fake.profile_questions] == [("start", num_steps)]


def test_stop(fake: FakeEngineClient) -> None:
    answer = ask(make_state(fake), "POST", STOP)
    assert (answer.status_code, answer.json()) == (
        200,
        {"status": "written", "files": list(FILES), "num_steps": 50, "seconds": 60.0},
    )
    assert [one.action for one in fake.profile_questions] == ["stop"]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (START, {"num_steps": 0}, "num_steps"),
        (START, {"num_steps": 1001}, "num_steps"),
        (START, {"num_steps": "5"}, "num_steps"),
        (START, {"path": "/etc"}, "path"),
        (STOP, {"num_steps": 5}, "num_steps"),
    ],
)
def test_senseless_bodies(fake: FakeEngineClient, path: str, body: dict[str, Any], param: str) -> None:
    answer = ask(make_state(fake), "POST", path, json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert not fake.profile_questions


@pytest.mark.parametrize("path", [START, STOP])
@pytest.mark.parametrize(
    ("code", "status", "said"),
    [
        ("no_profile_dir", 400, "no_profile_dir"),
        ("conflict", 409, "profile_conflict"),
        ("failed", 500, "failed"),
        (None, 503, "no_engine"),
    ],
)
def test_errors(fake: FakeEngineClient, path: str, code: str | None, status: int, said: str) -> None:
    fake.profile_answer = None if code is None else Profiled(0, code, "the reason")
    answer = ask(make_state(fake), "POST", path)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, said)
    assert answer.json()["error"]["message"] == ("there is no engine at the moment" if code is None else "the reason")


@pytest.mark.parametrize("path", [START, STOP])
@pytest.mark.parametrize(("host", "headers"), [("10.0.0.7", {}), ("127.0.0.1", ORIGIN)])
def test_without_keys_only_this_machine_may_ask(
    fake: FakeEngineClient, path: str, host: str, headers: dict[str, str]
) -> None:
    answer = ask(make_state(fake), "POST", path, client=(host, 1), headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "insufficient_scope")
    assert not fake.profile_questions


def test_scopes(fake: FakeEngineClient) -> None:
    _, state = made(fake, tenant("user"), tenant("root", scopes=("inference", "admin")))
    for name, status in (("user", 403), ("root", 200), ("nobody", 401)):
        headers = {key.decode(): value.decode() for key, value in as_(name)}
        for path in (START, STOP):
            assert ask(state, "POST", path, client=("10.0.0.7", 1), headers=headers).status_code == status
    assert len(fake.profile_questions) == 2


@on_a_loop
async def test_answers_find_who_asked() -> None:
    engine = Engine()
    stop = asyncio.ensure_future(engine.client.profiles.ask(Profile(0, "stop")))
    start = asyncio.ensure_future(engine.client.profiles.ask(Profile(0, "start", 5)))
    await asyncio.sleep(0)
    first, second = engine.connection.of(Profile)
    assert [(one.action, one.num_steps) for one in (first, second)] == [("stop", 0), ("start", 5)]
    engine.connection.receive(Profiled(second.number, "conflict", "no"))
    assert (await start).code == "conflict"
    assert not stop.done()
    engine.connection.receive(Profiled(first.number, files=FILES))
    assert (await stop).files == FILES
    engine.connection.receive(Profiled(first.number, files=FILES))  # nobody asks any more


@on_a_loop
async def test_an_engine_that_dies_takes_its_profile_along() -> None:
    engine = Engine()
    stop = asyncio.ensure_future(engine.client.profiles.ask(Profile(0, "stop")))
    await asyncio.sleep(0)
    engine.client.lose({}, was_killed=True)
    assert ((await stop).code, (await stop).error) == ("no_engine", "the engine died, and its profile is lost")
    assert (await engine.client.profiles.ask(Profile(0, "stop"))).code == "no_engine"
    engine.connect(is_ready=False)
    assert (await engine.client.profiles.ask(Profile(0, "start"))).code == "no_engine"
    engine.connect()
    last = asyncio.ensure_future(engine.client.profiles.ask(Profile(0, "start")))
    await asyncio.sleep(0)
    engine.client.disconnect(EngineError("the server is shutting down", status=503))
    assert (await last).error == "the server is shutting down"


@on_a_loop
async def test_several_gateways_ask_through_the_one_that_has_the_engine() -> None:
    server = Server(asyncio.get_running_loop())
    gateway = GatewayEnd(server)
    asked = asyncio.ensure_future(gateway.desk.profile(Profile(0, "start", 5)))
    await asyncio.sleep(0)
    question = gateway.to_server.pop()
    assert isinstance(question, Question)
    assert question.message is not None
    forwarded = asyncio.ensure_future(server.desk.profile(question.message))
    await asyncio.sleep(0)
    (told,) = server.connection.of(Profile)
    assert (told.action, told.num_steps) == ("start", 5)
    server.connection.receive(Profiled(told.number, "conflict", "a profile runs already"))
    gateway.desk.receive(Answer(question.number, msgspec.msgpack.encode(await forwarded)))
    answer = await asked
    assert (answer.code, answer.error) == ("conflict", "a profile runs already")
