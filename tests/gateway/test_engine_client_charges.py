"""What a request has cost reaches its bill, whoever has left by then."""

import asyncio

from test_engine_client import Engine, on_a_loop

from gateway.engine_stream import EngineStream, GenerationRequest
from gateway.tenant_usage import Bill, Usage
from ipc.messages import Abort, Add, Failed, FinishReason, Output, Outputs
from ipc.params import SamplingParams


def submit(engine: Engine, n: int = 1) -> tuple[EngineStream, Bill]:
    bill = Bill(Usage())
    request = GenerationRequest("m", [5], SamplingParams(), 7, n=n, tenant="a", weight=2.0, bill=bill)
    return engine.client.submit(request), bill


def end(engine: Engine, stream: EngineStream, choice: int = 0) -> None:
    output = Output(stream.request_id, choice, b"", finish=FinishReason.ABORT, device_ns=10, kv_block_ns=300)
    engine.connection.receive(Outputs(1, 9, (output,)))


@on_a_loop
async def test_each_choice_is_charged_once() -> None:
    engine = Engine()
    stream, bill = submit(engine, n=2)
    (add,) = engine.connection.of(Add)
    assert (add.tenant, add.weight) == ("a", 2.0)
    for choice in (0, 1):
        end(engine, stream, choice)
    assert (bill.num_charged, bill.device_ns, bill.kv_block_ns) == (2, 20, 600)
    assert (bill.account.device_ns, bill.account.kv_block_ns) == (20, 600)
    end(engine, stream)
    assert bill.num_charged == 2


@on_a_loop
async def test_who_has_left_is_charged_too() -> None:
    engine = Engine()
    stream, bill = submit(engine, n=2)
    stream.abort()
    assert len(engine.connection.of(Abort)) == 1
    end(engine, stream, 0)
    end(engine, stream, 1)
    assert bill.num_charged == 2
    assert not engine.client._left
    other, _ = submit(engine)
    other.abort()
    engine.connection.receive(Failed(other.request_id, -1, "aborted", "before it began"))
    assert not engine.client._left


@on_a_loop
async def test_a_dead_engine_says_nothing_any_more() -> None:
    engine = Engine()
    stream, bill = submit(engine)
    stream.abort()
    engine.client.lose({}, was_killed=True)
    assert not engine.client._left
    assert bill.num_charged == 0


@on_a_loop
async def test_what_a_dead_engine_had_computed_is_on_no_bill_and_nothing_twice() -> None:
    """Choices that had ended are charged, others by the engine that ends them: sums only grow."""
    engine = Engine()
    stream, bill = submit(engine, n=3)
    end(engine, stream, 0)
    engine.output(stream, [1, 2, 3], choice=1)
    stream.finish_choice(2, 0)
    sums = [(bill.account.device_ns, bill.account.kv_block_ns)]
    engine.client.lose({stream.request_id: True}, was_killed=True)
    sums.append((bill.account.device_ns, bill.account.kv_block_ns))
    engine.connect()
    (add,) = engine.connection.of(Add)
    assert [choice for choice, _ in add.choices] == [1]
    end(engine, stream, 1)
    sums.append((bill.account.device_ns, bill.account.kv_block_ns))
    assert sums == [(10, 300), (10, 300), (20, 600)]
    assert (bill.num_charged, bill.device_ns, bill.kv_block_ns) == (3, 20, 600)
    await bill.until_charged(3)


@on_a_loop
async def test_a_response_waits_for_what_it_has_cost() -> None:
    bill = Bill(Usage())
    waiting = asyncio.ensure_future(bill.until_charged(2))
    await asyncio.sleep(0)
    bill.charge(1, 1)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not waiting.done()
    bill.charge(1, 1)
    await waiting
    assert bill.cost().device_seconds == 2e-9
