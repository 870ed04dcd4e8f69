"""``python -m benchmarks.startup``: from exec to the first token of ``octavo serve``, phase by phase.

A start before the first round fills the caches. Phases are seen from outside: the port that answers, the lines of the
log as they arrive, and a completion of one token, all in seconds since the process was started.
"""

import argparse
import http.client
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from benchmarks.command import Part, run_part
from benchmarks.report import Table
from benchmarks.server_process import READY, serve_command
from ipc.errors import ConfigError
from loadtest.figures import spread

POLL_SECONDS = 0.005
START_SECONDS = 600.0  # the first start may convert the model and compile the kernels
LOG_PHASES = {"model loaded": "model loaded", "engine built": "engine built", "ready": READY}
PHASES = ("port answers", *LOG_PHASES, "first token")


class LogTimes:
    """When a phase's line was first in the log; ``last`` is what was said last."""

    def __init__(self, log: IO[str], started: float) -> None:
        self.seconds: dict[str, float] = {}
        self.last = "it said nothing"
        self._log, self._started = log, started
        self._changed = threading.Condition()
        self._is_at_end = False
        threading.Thread(target=self._read, name="log", daemon=True).start()

    def wait(self, phase: str) -> None:
        """Until the phase was seen. Raises ConfigError when the log ends or the time is up before."""
        with self._changed:
            self._changed.wait_for(lambda: phase in self.seconds or self._is_at_end, START_SECONDS)
            if phase not in self.seconds:
                raise ConfigError(f"octavo serve did not start: {self.last}")

    def _read(self) -> None:
        for line in self._log:
            now = time.perf_counter() - self._started
            with self._changed:
                self.last = line.strip() or self.last
                for phase, text in LOG_PHASES.items():
                    if text in line:
                        self.seconds.setdefault(phase, now)
                self._changed.notify_all()
        with self._changed:
            self._is_at_end = True
            self._changed.notify_all()


def add_options(parser: argparse.ArgumentParser) -> None:
    """What to start."""
    parser.add_argument("--model", default="smollm2", help="what octavo serve takes")
    parser.add_argument("--flags", default="", help="further flags of octavo serve, in one word")


def measure(options: argparse.Namespace) -> Iterator[Table]:
    """One table: a row for each phase."""
    start_once(options.model, options.flags)
    rounds = [start_once(options.model, options.flags) for _ in range(options.rounds)]
    rows = []
    for before, phase in zip((None, *PHASES), PHASES, strict=False):
        seconds = [one[phase] for one in rounds]
        alone = [one[phase] - (one[before] if before is not None else 0.0) for one in rounds]
        rows.append([phase, spread(seconds, 1, 2), spread(alone, 1, 2)])
    yield Table(
        f"From exec to the first token, {options.rounds} starts",
        ("phase", "s since exec", "s since the phase before"),
        rows,
        ("median (lowest - highest)", "a start before them filled the caches"),
    )


def start_once(model: str, flags: str) -> dict[str, float]:
    """Seconds since exec until each phase. Raises ConfigError if the server does not start or does not answer."""
    port = free_port()
    with server(model, port, flags) as (process, started):
        assert process.stderr is not None
        times = LogTimes(process.stderr, started)
        wait_for_port(port, process)
        port_seconds = time.perf_counter() - started
        times.wait("ready")
        complete_one_token(port)
        return {**times.seconds, "port answers": port_seconds, "first token": time.perf_counter() - started}


@contextmanager
def server(model: str, port: int, flags: str) -> Iterator[tuple["subprocess.Popen[str]", float]]:
    """The process and when it was started; ended with the block."""
    started = time.perf_counter()
    with serve_command(model, "startup", port, "info", flags) as process:
        yield process, started


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def wait_for_port(port: int, process: "subprocess.Popen[str]") -> None:
    """Until /health/live answers. Raises ConfigError when the server ends before."""
    while process.poll() is None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=START_SECONDS)
        try:
            connection.request("GET", "/health/live")
            if connection.getresponse().status == http.HTTPStatus.OK:
                return
        except ConnectionError:
            time.sleep(POLL_SECONDS)
        finally:
            connection.close()
    raise ConfigError(f"octavo serve ended with status {process.returncode} before its port answered")


def complete_one_token(port: int) -> None:
    """Raises ConfigError for an answer that is none."""
    body = {"model": "startup", "prompt": "The capital of France is", "max_tokens": 1, "temperature": 0}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=START_SECONDS)
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    text = response.read().decode()
    connection.close()
    if response.status != http.HTTPStatus.OK:
        raise ConfigError(f"the completion was answered with {response.status}: {text[:200]}")


PART = Part("startup", __doc__ or "", add_options, measure, num_rounds=7)

if __name__ == "__main__":
    sys.exit(run_part(PART, sys.argv[1:]))
