"""How a server ends, asked to or not: every stream hears of it once, and nothing is left behind."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from e2e_http import COMP, DONE, Exchange, comp, long_runner, post
from e2e_process import START_SECONDS, ServerProcess, is_alive, wait_until

Start = Callable[..., ServerProcess]
LONG = ("--max-model-len", "131072", "--max-num-seqs", "4", "--num-kv-blocks", "16384")
MAX_TOKENS = 60_000


@contextmanager
def nothing_left(server: ServerProcess, seconds: float = 5.0) -> Iterator[None]:
    """After the block no process of the session and no file of the server is left, soon."""
    assert server.processes()
    yield
    wait_until(lambda: not server.processes(), seconds, "all processes have ended")
    left = [path.name for path in server.socket_folder.iterdir()]
    assert left == []


def check_one_error(exchange: Exchange, code: str) -> None:
    """The stream ends with one error event as its last word, and not as if it had come to its end."""
    exchange.read_events()
    (error,) = exchange.errors
    assert error["code"] == code
    assert set(error) >= {"message", "type", "code"}
    assert exchange.events[-1] == {"error": error}
    assert DONE not in exchange.events
    assert not exchange.finish_reasons()
    assert exchange.is_ended


def test_sigterm_drains(start: Start) -> None:
    """What is short ends well, what is long is told, what is new is refused; queued work counts as running."""
    server = start(*LONG, "--max-num-seqs", "2", "--shutdown-timeout", "3").wait_ready()
    few = server.tokens_within(1, most=1000)
    alone = post(server, COMP, comp(max_tokens=few, ignore_eos=True, seed=1, temperature=1))["choices"][0]["text"]
    with nothing_left(server):
        short = Exchange(server, COMP, long_runner(max_tokens=few, seed=1, temperature=1))
        long = Exchange(server, COMP, long_runner(max_tokens=MAX_TOKENS))
        short.read_events(1)
        long.read_events(1)
        queued = Exchange(server, COMP, comp(max_tokens=3, ignore_eos=True))
        server.wait_load(running=2, waiting=1)
        late = Exchange(server, COMP, b"", headers={"Content-Length": "60"})  # its body has not come yet
        server.terminate()
        asked = time.monotonic()
        wait_until(lambda: server.status() == 503, 3, "not ready any more")
        refused = server.http.post(COMP, json=comp(max_tokens=1))
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "draining"
        assert server.status("/health/live") == 200
        assert short.ended_well().text() == alone
        assert queued.read_head().status == 200
        check_one_error(long, "shutting_down")
        assert server.wait_exit(30) == 0
        assert time.monotonic() - asked < 3 + 2 + 1  # the grace, two seconds, and what a busy machine adds
        for exchange in (short, long, queued, late):
            exchange.close()
    assert "Traceback" not in server.log


def test_a_second_sigterm_ends_at_once(start: Start) -> None:
    server = start(*LONG, "--shutdown-timeout", "600").wait_ready()
    with nothing_left(server), Exchange(server, COMP, long_runner(max_tokens=MAX_TOKENS)) as exchange:
        exchange.read_events(1)
        server.terminate()
        wait_until(lambda: server.status() == 503, 5, "draining")
        server.terminate()
        server.terminate()  # a third one, during the clean-up, changes nothing
        check_one_error(exchange, "shutting_down")
        assert server.wait_exit(10) == 0
    assert "Traceback" not in server.log


def test_ctrl_c_reaches_the_whole_group_and_is_answered_by_the_server_alone(start: Start) -> None:
    server = start(*LONG).wait_ready()
    few = server.tokens_within(1.5, most=3000)
    with nothing_left(server), Exchange(server, COMP, long_runner(max_tokens=few)) as exchange:
        exchange.read_events(1)
        os.killpg(server.pid, signal.SIGINT)
        exchange.ended_well()  # the engine went on
        assert server.wait_exit(10) == 0
    assert "Traceback" not in server.log


@pytest.mark.parametrize("moment", ["import", "load", "group"])
def test_a_signal_while_loading(start: Start, moment: str) -> None:
    """Not lost, wherever the start-up is."""
    server = start(*LONG)
    if moment == "import":
        wait_until(lambda: server.status("/health/live") == 200, START_SECONDS, "the port answers")
    else:
        wait_until(lambda: server.engine_pids(), START_SECONDS, "the engine was started")
    with nothing_left(server):
        if moment == "group":
            os.killpg(server.pid, signal.SIGINT)
        else:
            server.terminate()
        assert server.wait_exit(5) == 0
    assert "Traceback" not in server.log


def test_an_engine_that_is_killed(start: Start) -> None:
    """Without restarts: streams get one error within two seconds, plain requests a 500, and the server ends with a
    status of its own."""
    server = start(*LONG, "--engine-max-restarts", "0").wait_ready()
    (engine,) = server.engine_pids()
    with nothing_left(server):
        streams = [Exchange(server, COMP, long_runner(max_tokens=MAX_TOKENS)) for _ in range(2)]
        plain = [Exchange(server, COMP, comp(max_tokens=MAX_TOKENS, ignore_eos=True)) for _ in range(2)]
        for exchange in streams:
            exchange.read_events(2)
        server.wait_load(running=4)
        killed = time.monotonic()
        os.kill(engine, signal.SIGKILL)
        for exchange in streams:
            check_one_error(exchange, "engine_died")
            assert exchange.event_times[-1] - killed < 2
        for exchange in plain:
            assert exchange.read_head().status == 500
            assert b"engine_died" in exchange.read_body()
        assert server.wait_exit(10) == 1
        for exchange in [*streams, *plain]:
            exchange.close()
    assert "SIGKILL" in server.log
    assert "Traceback" not in server.log


@pytest.mark.parametrize("is_ready", [False, True])
def test_a_server_that_is_killed_takes_its_engine_along(start: Start, is_ready: bool) -> None:
    """Also while it loads; and the same port serves again."""
    server = start(*LONG)
    wait_until(lambda: server.engine_pids(), START_SECONDS, "the engine was started")
    exchange = None
    if is_ready:
        server.wait_ready()
        exchange = Exchange(server, COMP, long_runner(max_tokens=MAX_TOKENS))
        exchange.read_events(2)
    (engine,) = server.engine_pids()
    server.process.kill()
    wait_until(lambda: not is_alive(engine), 5, "the engine has ended")
    if exchange is not None:
        with pytest.raises(ConnectionError):
            exchange.read_events()
        exchange.close()
        again = start(*LONG, port=server.port).wait_ready()
        again.check_healthy()


def test_requests_that_come_while_it_ends(start: Start) -> None:
    """Each gets an answer or no connection, never silence."""
    server = start(*LONG, "--shutdown-timeout", "1").wait_ready()
    answers: list[int | None] = []

    def ask() -> None:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            status = None
            try:
                with Exchange(server, COMP, comp(max_tokens=2), timeout=20) as exchange:
                    status = exchange.read_head().status
            except ConnectionError:
                pass  # refused or reset, but not silent
            answers.append(status)
            if status is None:
                return

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    wait_until(lambda: answers.count(200) > 10, 30, "requests are served")
    server.terminate()
    for thread in threads:
        thread.join()
    assert set(answers) <= {200, 503, None}
    assert server.wait_exit(10) == 0
    assert "Traceback" not in server.log
