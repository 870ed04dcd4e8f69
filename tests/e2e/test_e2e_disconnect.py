"""A client that goes away takes its work with it within a second, wherever the work was, and nobody else's."""

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from e2e_http import CHAT, COMP, Exchange, chat, comp, long_runner, post
from e2e_process import ServerProcess, wait_until

ABORTED = "request_success_total{finished_reason=abort}"
LIMIT = 1.0  # seconds from the close to the engine's having let go


def check_gone(server: ServerProcess, seconds: float = LIMIT) -> None:
    """Idle soon enough, by a clock that stops for nothing else on the machine but this."""
    assert server.wait_idle(20) < seconds


@pytest.fixture(scope="module")
def alone(single_process: ServerProcess) -> tuple[dict[str, Any], str]:
    """A stream's request, and its text if nobody else is there."""
    num_tokens = single_process.tokens_within(2, most=5000)
    body = long_runner("Stream A", max_tokens=num_tokens, temperature=1, seed=3)
    return body, post(single_process, COMP, {**body, "stream": False})["choices"][0]["text"]


@pytest.fixture
def long_a(single_server: ServerProcess, alone: tuple[dict[str, Any], str]) -> Iterator[Exchange]:
    """A stream that has the only slot until the test is over; its text must not suffer."""
    body, text = alone
    with Exchange(single_server, COMP, body) as exchange:
        exchange.read_events(2)
        yield exchange
        assert exchange.ended_well().text() == text


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("reset", [False, True])
def test_while_queued(single_server: ServerProcess, long_a: Exchange, is_stream: bool, reset: bool) -> None:
    """The one that has left is never computed: not one of its prompt tokens."""
    single_server.wait_load(running=1, waiting=0)
    before = single_server.metrics()
    queued = Exchange(single_server, COMP, comp("B " * 200, max_tokens=5, stream=is_stream))
    single_server.wait_load(running=1, waiting=1)
    queued.close(reset=reset)
    assert single_server.wait_load(running=1, waiting=0) < LIMIT
    long_a.ended_well()
    after = single_server.settled_metrics()
    assert after["prompt_tokens_total"] == before["prompt_tokens_total"]
    assert after[ABORTED] == before[ABORTED] + 1


@pytest.mark.parametrize("path", [CHAT, COMP])
@pytest.mark.parametrize("is_stream", [False, True])
def test_while_running(single_server: ServerProcess, path: str, is_stream: bool) -> None:
    before = single_server.settled_metrics()
    body = (chat if path == CHAT else comp)(max_tokens=30_000, ignore_eos=True, stream=is_stream)
    exchange = Exchange(single_server, path, body)
    if is_stream:
        exchange.read_events(3)
    single_server.wait_load(running=1)
    tokens = "generation_tokens_total"
    wait_until(lambda: single_server.metric(tokens) > before[tokens], 20, "a token")
    exchange.close()
    check_gone(single_server)
    after = single_server.settled_metrics()
    assert after[ABORTED] == before[ABORTED] + 1
    assert after[tokens] > before[tokens]  # the work done stays counted


def test_during_a_long_prefill(single_server: ServerProcess) -> None:
    """Thousands of steps would be left."""
    before = single_server.settled_metrics()
    exchange = Exchange(single_server, COMP, comp([5, 6, 7] * 10_000, max_tokens=5, stream=True))
    single_server.wait_load(running=1)
    exchange.close()
    check_gone(single_server)
    after = single_server.settled_metrics()
    assert after["generation_tokens_total"] == before["generation_tokens_total"]
    assert after[ABORTED] == before[ABORTED] + 1


def test_all_children_of_one_request(server: ServerProcess) -> None:
    """Three prompts with two choices each: all six end, and each prompt's request is counted as aborted."""
    before = server.settled_metrics()
    body = long_runner(["one", "two", "three"], n=2)
    with Exchange(server, COMP, body) as exchange:
        exchange.read_events(6)
        server.wait_load(running=6)
    check_gone(server)
    assert server.settled_metrics()[ABORTED] == before[ABORTED] + 3


def test_everybody_leaves_at_once(server: ServerProcess) -> None:
    """The gauges fall although no step follows that could refresh them."""
    before = server.settled_metrics()
    exchanges = [Exchange(server, COMP, long_runner(f"{index} of them")) for index in range(20)]
    server.wait_load(running=16, waiting=4)
    for exchange in exchanges:
        exchange.close(reset=True)
    check_gone(server, 2.0)
    assert server.settled_metrics()[ABORTED] == before[ABORTED] + 20


def test_leaving_after_a_stop_string_is_no_abort(server: ServerProcess) -> None:
    before = server.settled_metrics()
    for _ in range(3):
        post(server, COMP, comp(max_tokens=500, ignore_eos=True, stop=["e", "a", " ", "V"], temperature=1, seed=2))
    after = server.settled_metrics()
    assert after[ABORTED] == before[ABORTED]
    stopped = "request_success_total{finished_reason=stop}"
    assert after[stopped] == before[stopped] + 3


def test_many_connections_opened_and_left(server: ServerProcess) -> None:
    """Leaving before the answer begins, in every possible moment."""

    def leave(delay: float) -> None:
        body = long_runner("short visit", max_tokens=50)
        with Exchange(server, COMP, body):
            time.sleep(delay)  # the moment is what is varied, not waited for

    threads = [threading.Thread(target=leave, args=(index / 1000,)) for index in range(60)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    check_gone(server, 5.0)


def test_half_a_request(server: ServerProcess) -> None:
    """A body that never comes whole is no request."""
    before = server.settled_metrics()
    length = {"Content-Length": "1000"}
    body: Any = b'{"model": "tiny", "prompt": "'
    with Exchange(server, COMP, body, headers=length):
        assert server.status() == 200
    assert server.settled_metrics()["steps_total"] == before["steps_total"]
