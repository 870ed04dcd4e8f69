"""Gateways in processes of their own: what crosses between them and the desk, in any order of events and deaths."""

import asyncio
import itertools
from collections import deque
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from test_engine_client import READY, Connection

from gateway.admission import Demand
from gateway.desk import FrontDesk
from gateway.engine_client import EngineClient
from gateway.engine_stream import EngineStream, GenerationRequest
from gateway.relay import Relay
from gateway.remote_desk import LONG_BODY, RemoteDesk
from gateway.tenants import Tenants
from gateway.visit import Visit
from ipc.codec import pack_ids, unpack_ids
from ipc.config import GatewayConfig, TenantConfig
from ipc.desk import Answer, Close, Entered, Outage, Question, ToDesk, ToGatewayProcess, TurnedAway
from ipc.errors import CapacityError, EngineError, RequestError
from ipc.messages import Abort, Accepted, Add, EventKind, Failed, FinishReason, Hello, Output, Outputs
from ipc.params import SamplingParams
from observability.metrics import Metrics

TENANT = TenantConfig(name="a", keys=("00" * 32,), concurrent_requests=2, tokens_per_minute=10_000)


class Server:
    """The process with the engine's client and the desk; messages to and from it wait until they are delivered."""

    def __init__(self, loop: asyncio.AbstractEventLoop, **config: Any) -> None:
        self.loop = loop
        self.client = EngineClient(loop, lambda _: None, lambda _: None)
        self.config = GatewayConfig(**config)
        self.metrics = Metrics(model_name="m")
        self.desk = FrontDesk(self.config, Tenants([TENANT]), self.client, self.metrics, 0)
        self.numbers = itertools.count(1)
        self.serve()

    def serve(self) -> None:
        self.connection = Connection()
        self.client.connect(self.connection)
        self.connection.receive(READY)


class GatewayEnd:
    """One gateway, and its relay at the server."""

    def __init__(self, server: Server) -> None:
        self.to_server: deque[ToDesk] = deque()
        self.to_gateway: deque[ToGatewayProcess] = deque()
        self.relay = Relay(server.client, server.desk, self.to_gateway.append, server.numbers)
        self.client = EngineClient(server.loop, lambda _: None, lambda _: None)
        self.desk = RemoteDesk(server.loop, self.to_server.append)
        self.tenants = Tenants([TENANT])
        self.client.connect(self)
        self.to_gateway.append(READY)
        self.deliver()

    def start(self, on_message: Any) -> None:
        self.receive = on_message

    def send(self, message: ToDesk) -> None:
        self.to_server.append(message)

    def close(self) -> None:
        """Nothing is left to close."""

    def deliver(self) -> None:
        """Everything, both ways."""
        while self.to_server or self.to_gateway:
            self.deliver_one(to_server=bool(self.to_server))

    def deliver_one(self, *, to_server: bool) -> None:
        if to_server and self.to_server:
            message = self.to_server.popleft()
            if not isinstance(message, Hello):
                self.relay.receive(message)
        elif not to_server and self.to_gateway:
            answer = self.to_gateway.popleft()
            if isinstance(answer, Entered | TurnedAway | Answer | Close):
                self.desk.receive(answer)
            else:
                self.receive(answer)


def demand(num_bytes: int = 40, n: int = 1) -> Demand:
    return Demand(num_bytes, num_choices=n, max_tokens=4, num_prompt_tokens=1)


def request(visit: Visit | None = None, n: int = 1, **fields: Any) -> GenerationRequest:
    params = SamplingParams(max_tokens=4)
    number = 0 if visit is None else visit.number
    bill = None if visit is None else visit.bill
    return GenerationRequest("m", [1], params, arrival_ns=1, n=n, visit=number, bill=bill, **fields)


def on_a_loop(test: Any) -> Any:
    def run() -> None:
        asyncio.run(asyncio.wait_for(test(), 10))

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


async def through(gateway: GatewayEnd, work: Coroutine[Any, Any, Any]) -> Any:
    """The result of something that asks the desk."""
    task = asyncio.ensure_future(work)
    while not task.done():
        await asyncio.sleep(0)
        gateway.deliver()
    return task.result()


@on_a_loop
async def test_a_request_through_the_relay() -> None:
    server = Server(asyncio.get_running_loop())
    gateway = GatewayEnd(server)
    tenant = gateway.tenants.by_name("a")
    visit = await through(gateway, gateway.desk.enter(tenant, demand()))
    assert (b"x-ratelimit-remaining-requests", b"1") in visit.rate_limits
    stream = gateway.client.submit(request(visit))
    gateway.deliver()
    (add,) = server.connection.of(Add)
    assert (add.request_id, add.visit, unpack_ids(add.prompt_ids)) == (stream.request_id, visit.number, [1])
    server.connection.receive(Accepted(stream.request_id))
    gateway.deliver()
    await stream.accepted()
    server.connection.receive(Outputs(1, 9, (Output(stream.request_id, 0, pack_ids([7, 8]), num_cached_tokens=1),)))
    last = Output(stream.request_id, 0, pack_ids([9]), finish=FinishReason.LENGTH, device_ns=10, kv_block_ns=20)
    server.connection.receive(Outputs(1, 11, (last,)))
    gateway.deliver()
    outputs = stream.take()
    assert [(one.token_ids, one.finish, one.time_ns) for one in outputs] == [([7, 8], None, 9), ([9], 1, 11)]
    assert (visit.bill.device_ns, visit.bill.num_charged) == (10, 1)
    assert server.desk.admission.num_sequences == 1
    visit.end()
    gateway.deliver()
    usage = server.desk.tenants.by_name("a").usage
    assert (usage.num_requests, usage.prompt_tokens, usage.output_tokens, usage.device_ns) == (1, 1, 3, 10)
    assert gateway.relay.is_idle
    assert server.desk.admission.num_sequences == server.client.num_in_flight == 0


@on_a_loop
async def test_who_is_turned_away_hears_why_and_when_to_come() -> None:
    server = Server(asyncio.get_running_loop(), max_num_queued_reqs=4)
    gateways = [GatewayEnd(server), GatewayEnd(server)]
    for gateway in gateways:
        await through(gateway, gateway.desk.enter(gateway.tenants.by_name("a"), demand()))
    for gateway in gateways:
        limited, other = gateway.tenants.by_name("a"), gateway.tenants.default
        with pytest.raises(CapacityError, match="as many requests as this key may have") as caught:
            await through(gateway, gateway.desk.enter(limited, demand()))
        assert caught.value.retry_after >= 1
        assert (b"x-ratelimit-remaining-requests", b"0") in caught.value.rate_limits
        with pytest.raises(CapacityError, match="as many requests as may"):
            await through(gateway, gateway.desk.enter(other, demand(n=4)))
        await through(gateway, gateway.desk.check(other, LONG_BODY))
    await through(gateway, gateway.desk.enter(other, demand(n=2)))
    for num_bytes, is_asked in ((LONG_BODY - 1, False), (LONG_BODY, True)):
        checking = gateway.desk.check(other, num_bytes)
        if is_asked:
            with pytest.raises(CapacityError):
                await through(gateway, checking)
        else:
            await checking
    text = server.metrics.render().decode()
    assert 'octavo:requests_refused_total{engine="0",model_name="m",reason="tenant_requests"} 2.0' in text


@on_a_loop
async def test_failures_keep_their_kind_on_the_way() -> None:
    server = Server(asyncio.get_running_loop())
    gateway = GatewayEnd(server)
    grammar = ("json_schema", "{}")
    streams = [gateway.client.submit(request(grammar=grammar, grammar_param="response_format")) for _ in range(3)]
    gateway.deliver()
    codes = ("invalid_grammar", "impossible", "corrupt_logits")
    for stream, code in zip(streams, codes, strict=True):
        server.connection.receive(Failed(stream.request_id, -1, code, "because"))
    gateway.deliver()
    with pytest.raises(RequestError, match=r"^response_format cannot be honoured: because$"):
        await streams[0].accepted()
    with pytest.raises(RequestError, match=r"^because$"):
        await streams[1].accepted()
    with pytest.raises(EngineError) as caught:
        await streams[2].accepted()
    assert caught.value.code == "corrupt_logits"
    server.client.disconnect(EngineError("the engine died", code="engine_died"))
    late = gateway.client.submit(request())
    with pytest.raises(EngineError, match="the engine died"):
        await through(gateway, late.accepted())
    with pytest.raises(EngineError) as unready:
        await through(gateway, gateway.desk.enter(gateway.tenants.default, demand()))
    assert unready.value.status == 503
    assert gateway.relay.is_idle


@on_a_loop
async def test_who_leaves_while_the_desk_decides_keeps_no_place() -> None:
    """Before the desk has the question, before its answer is read, and after."""
    for moment in range(4):
        server = Server(asyncio.get_running_loop())
        gateway = GatewayEnd(server)
        entering = asyncio.ensure_future(gateway.desk.enter(gateway.tenants.default, demand()))
        await asyncio.sleep(0)
        if moment >= 1:
            gateway.deliver_one(to_server=True)  # hello
            gateway.deliver_one(to_server=True)
        if moment >= 2:
            assert server.desk.admission.num_sequences == 1
        if moment >= 3:
            gateway.deliver_one(to_server=False)
        entering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await entering
        gateway.deliver()
        assert server.desk.admission.num_sequences == 0
        assert gateway.relay.is_idle


@on_a_loop
async def test_a_gateway_that_dies_leaves_nothing_behind() -> None:
    server = Server(asyncio.get_running_loop())
    gateway = GatewayEnd(server)
    visits = [await through(gateway, gateway.desk.enter(gateway.tenants.default, demand(n=2))) for _ in range(3)]
    streams = [gateway.client.submit(request(visit, n=2)) for visit in visits[:2]]
    gateway.deliver()
    assert (server.desk.admission.num_sequences, server.client.num_in_flight) == (6, 2)
    gateway.relay.end()
    assert (server.desk.admission.num_sequences, server.client.num_in_flight) == (0, 0)
    assert [one.request_id for one in server.connection.of(Abort)] == [stream.request_id for stream in streams]
    # What it costs until the engine has heard of it is its tenant's all the same; nobody is told.
    output = Output(streams[0].request_id, 0, b"", finish=FinishReason.ABORT, device_ns=7)
    server.connection.receive(Outputs(1, 9, (output,)))
    assert server.desk.tenants.default.usage.device_ns == 7
    assert not gateway.to_gateway


@on_a_loop
async def test_an_engine_that_dies_is_not_seen_from_a_gateway() -> None:
    server = Server(asyncio.get_running_loop())
    gateway = GatewayEnd(server)
    stream = gateway.client.submit(request(n=2))
    gateway.deliver()
    admitted = (int(EventKind.ADMITTED), 5, 0)
    first = Output(stream.request_id, 0, pack_ids([1]), events=(admitted,), num_cached_tokens=16)
    server.connection.receive(Outputs(1, 9, (first,)))
    server.client.lose({}, was_killed=True)
    server.serve()
    (add,) = server.connection.of(Add)
    assert [(choice, unpack_ids(ids)) for choice, ids in add.choices] == [(0, [1]), (1, [])]
    second = Output(stream.request_id, 0, pack_ids([2]), events=(admitted,), num_cached_tokens=64)
    server.connection.receive(Outputs(1, 11, (second,)))
    gateway.deliver()
    seen = [(one.token_ids, one.num_cached_tokens, [event[0] for event in one.events]) for one in stream.take()]
    assert seen == [([1], 16, [EventKind.ADMITTED]), ([2], 16, [EventKind.RESUMED])]


@on_a_loop
async def test_what_came_before_a_failure_comes_before_it() -> None:
    """Also where both are of one message of the engine, which is sent on as a whole at its end."""
    server = Server(asyncio.get_running_loop())
    gateway = GatewayEnd(server)
    stream = gateway.client.submit(request())
    gateway.deliver()
    relayed = gateway.relay._streams[stream.request_id]
    relayed.push(Output(stream.request_id, 0, pack_ids([1])), 9)
    relayed.fail(Failed(stream.request_id, -1, "engine_died", "the engine died"))
    assert [type(one) for one in gateway.to_gateway] == [Outputs, Failed]


@on_a_loop
async def test_readiness_hears_of_an_outage() -> None:
    desk = RemoteDesk(asyncio.get_running_loop(), lambda _: None)
    desk.check_outage()
    desk.receive(Outage("no engine for 12 s: it died"))
    with pytest.raises(EngineError, match="for 12 s") as caught:
        desk.check_outage()
    assert (caught.value.status, caught.value.code) == (503, "no_engine")
    desk.receive(Outage(""))
    desk.check_outage()


@on_a_loop
async def test_questions_that_nobody_answers_end_with_the_connection() -> None:
    server = Server(asyncio.get_running_loop())
    gateway = GatewayEnd(server)
    asking = [asyncio.ensure_future(one) for one in (gateway.desk.metrics(), gateway.desk.drain())]
    await asyncio.sleep(0)
    assert [one.about for one in gateway.to_server if isinstance(one, Question)] == ["metrics", "drain"]
    gateway.desk.disconnect(EngineError("the server is shutting down", code="shutting_down", status=503))
    for one in asking:
        with pytest.raises(EngineError, match="shutting down"):
            await one
    assert gateway.desk.is_draining


class Several(RuleBasedStateMachine):
    """Two gateways under requests of two choices; token k of a choice is k + 1. Messages cross when they are delivered,
    clients leave, engines and gateways die."""

    @initialize()
    def begin(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.server = Server(self.loop)
        self.gateways = [GatewayEnd(self.server) for _ in range(2)]
        self.entering: list[tuple[GatewayEnd, asyncio.Task[Visit]]] = []
        self.guests: list[tuple[GatewayEnd, Visit, EngineStream]] = []
        self.got: dict[tuple[int, int], list[int]] = {}
        self.ends: dict[tuple[int, int], int] = {}

    def teardown(self) -> None:
        for _, task in self.entering:
            task.cancel()
        self.spin()
        self.loop.close()

    def spin(self) -> None:
        for _ in range(4):
            self.loop.run_until_complete(asyncio.sleep(0))

    @property
    def running(self) -> dict[int, dict[int, int]]:
        """What the present engine has and has not ended: tokens so far of each choice, by request."""
        server = self.server
        aborted = {one.request_id for one in server.connection.of(Abort)}
        given = {one.request_id for one in server.connection.of(Add)} - aborted
        flights = [stream.flight for stream in server.client._streams.values()]
        return {
            flight.request_id: {
                index: len(choice.packed) // 4 for index, choice in flight.choices.items() if not choice.is_finished
            }
            for flight in flights
            if flight.request_id in given
        }

    @rule(index=st.integers(0, 1))
    def arrive(self, index: int) -> None:
        gateway = self.gateways[index]
        task = self.loop.create_task(gateway.desk.enter(gateway.tenants.default, demand(n=2)))
        self.entering.append((gateway, task))
        self.spin()

    @rule(index=st.integers(0, 1))
    def arrive_and_begin(self, index: int) -> None:
        self.arrive(index)
        for _ in range(2):
            self.deliver_all(index)

    @rule(index=st.integers(0, 1), to_server=st.booleans())
    def deliver(self, index: int, to_server: bool) -> None:
        self.gateways[index].deliver_one(to_server=to_server)
        self.go_in()

    @rule(index=st.integers(0, 1))
    def deliver_all(self, index: int) -> None:
        self.gateways[index].deliver()
        self.go_in()

    def go_in(self) -> None:
        self.spin()
        for gateway, task in list(self.entering):
            if task.done():
                self.entering.remove((gateway, task))
                if not task.cancelled():
                    visit = task.result()
                    self.guests.append((gateway, visit, gateway.client.submit(request(visit, n=2))))

    @rule(pick=st.randoms(use_true_random=False))
    def give_up(self, pick: Any) -> None:
        if self.entering:
            pick.choice(self.entering)[1].cancel()
            self.go_in()

    @rule(pick=st.randoms(use_true_random=False), finish=st.booleans())
    def output(self, pick: Any, finish: bool) -> None:
        if running := self.running:
            request_id = pick.choice(list(running))
            self.one_output(request_id, pick.choice(list(running[request_id])), finish)

    def one_output(self, request_id: int, choice: int, finish: bool) -> None:
        tokens = pack_ids([self.running[request_id][choice] + 1])
        one = Output(request_id, choice, tokens, finish=FinishReason.LENGTH if finish else None)
        self.server.connection.receive(Outputs(1, 9, (one,)))

    @rule(pick=st.randoms(use_true_random=False))
    def stop(self, pick: Any) -> None:
        if self.guests:
            _, _, stream = pick.choice(self.guests)
            choice = pick.randrange(2)
            stream.finish_choice(choice, len(stream.choices[choice].token_ids))

    @rule(pick=st.randoms(use_true_random=False))
    def leave(self, pick: Any) -> None:
        if self.guests:
            guest = pick.choice(self.guests)
            self.guests.remove(guest)
            _, visit, stream = guest
            stream.abort()
            visit.end()

    @rule(pick=st.randoms(use_true_random=False), was_killed=st.booleans())
    def engine_dies(self, pick: Any, was_killed: bool) -> None:
        in_step = [request_id for request_id in self.running if pick.random() < 0.5]
        self.server.client.lose(dict.fromkeys(in_step, pick.random() < 0.5), was_killed=was_killed)
        self.server.serve()

    @rule(index=st.integers(0, 1))
    def gateway_dies(self, index: int) -> None:
        dead = self.gateways[index]
        dead.relay.end()
        for gateway, task in list(self.entering):
            if gateway is dead:
                self.entering.remove((gateway, task))
                task.cancel()
        self.spin()
        self.guests = [guest for guest in self.guests if guest[0] is not dead]
        self.gateways[index] = GatewayEnd(self.server)

    @invariant()
    def nothing_is_lost_or_twice(self) -> None:
        if not hasattr(self, "guests"):
            return
        for _, _, stream in self.guests:
            for output in stream.take() if stream._failure is None else ():
                key = (stream.request_id, output.choice)
                self.got.setdefault(key, []).extend(output.token_ids)
                self.ends[key] = self.ends.get(key, 0) + (output.finish is not None)
        assert all(tokens == list(range(1, len(tokens) + 1)) for tokens in self.got.values())
        assert all(count <= 1 for count in self.ends.values())

    @rule()
    def everybody_is_served_in_the_end(self) -> None:
        for gateway in self.gateways:
            gateway.deliver()
        self.go_in()
        for _ in range(10 + 4 * len(self.guests)):
            for gateway in self.gateways:
                gateway.deliver()
            for request_id, choices in self.running.items():
                for choice in choices:
                    self.one_output(request_id, choice, finish=True)
        for gateway in self.gateways:
            gateway.deliver()
        for _, visit, stream in self.guests:
            assert stream.is_finished
            stream.abort()
            visit.end()
        self.nothing_is_lost_or_twice()
        self.guests = []
        for gateway in self.gateways:
            gateway.deliver()
            assert gateway.relay.is_idle
            assert gateway.client.num_in_flight == 0
            assert not gateway.client._left
        assert self.server.client.num_in_flight == 0
        assert self.server.desk.admission.num_sequences == 0


TestSeveral = Several.TestCase
TestSeveral.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
