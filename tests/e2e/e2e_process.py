"""A server as users start it: a process of its own with a log; its children, its gauges, its end."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families

START_SECONDS = 240.0  # a first start compiles kernels, on a machine that is busy with something else
GAUGES = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")


def octavo_command() -> list[str]:
    """The installed console script, as a user's shell finds it."""
    script = Path(sysconfig.get_path("scripts")) / "octavo"
    return [str(script)] if script.is_file() else [sys.executable, "-m", "octavo.cli"]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def wait_until(condition: Callable[[], object], seconds: float, what: str) -> float:
    """Polls until ``condition()`` is true; the seconds that took. Fails with ``what`` at the deadline."""
    started = time.monotonic()
    while not condition():
        assert time.monotonic() < started + seconds, f"not within {seconds} s: {what}"
        time.sleep(0.01)
    return time.monotonic() - started


def own_core(allowed: Collection[int]) -> int:
    """The last of them; where pytest runs in several processes, another one for each."""
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    return sorted(allowed)[-1 - number % len(allowed)]


def is_alive(pid: int) -> bool:
    """Whether the process exists and is no zombie."""
    try:
        return _stat(pid)[0] not in "ZX"
    except OSError:
        return False


def cpu_seconds(pid: int) -> float:
    """User and system time of a process, all threads."""
    fields = _stat(pid)
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """The process stands still for the block."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def processes_with(folder: Path) -> list[int]:
    """Living processes whose TMPDIR is ``folder``: whatever a server has started, also if its parent is gone."""
    mark = b"TMPDIR=" + os.fsencode(folder)
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                environment = (entry / "environ").read_bytes().split(b"\0")
            except OSError:
                continue  # it has ended meanwhile, or is another user's
            if mark in environment and is_alive(int(entry.name)):
                found.append(int(entry.name))
    return found


def _stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


class ServerProcess:
    """``octavo serve`` with ``arguments``, in a session of its own.

    It gets one core unless ``all_cores``: steps of a tiny model are too short for threads to help, and on a busy
    machine they wait for each other. Its sockets go into a TMPDIR of its own, so that a test can see what is left.
    """

    def __init__(
        self,
        folder: Path,
        *arguments: str,
        api_key: str | None = None,
        uds: Path | None = None,
        all_cores: bool = False,
        port: int | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.log_path = folder / "log.txt"
        self.socket_folder = Path("/tmp") / f"e2e-{os.getpid()}-{folder.name}"[:60]  # a socket's path is short
        shutil.rmtree(self.socket_folder, ignore_errors=True)
        self.socket_folder.mkdir()
        self.api_key, self.uds = api_key, uds
        self.port = free_port() if port is None else port
        self.base_url = "http://localhost" if uds is not None else f"http://127.0.0.1:{self.port}"
        where = ["--uds", str(uds)] if uds is not None else ["--port", str(self.port)]
        keys = [] if api_key is None else ["--api-key", api_key]
        command = [*octavo_command(), "serve", *arguments, *where, *keys]
        environment = {**os.environ, "TMPDIR": str(self.socket_folder)}
        allowed = os.sched_getaffinity(0)
        if not all_cores:
            os.sched_setaffinity(0, {own_core(allowed)})  # inherited by the child, set back at once here
        try:
            with self.log_path.open("wb") as log:
                self.process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=environment,
                    start_new_session=True,
                )
        finally:
            os.sched_setaffinity(0, allowed)
        headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        transport = httpx.HTTPTransport(
            uds=None if uds is None else str(uds), limits=httpx.Limits(max_connections=None)
        )
        self.http = httpx.Client(base_url=self.base_url, headers=headers, timeout=60, transport=transport)

    # ---- its life

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def processes(self) -> list[int]:
        """What lives of it."""
        return processes_with(self.socket_folder)

    def engine_pids(self) -> list[int]:
        return [pid for pid in self.processes() if pid != self.pid]

    def status(self, path: str = "/health") -> int | None:
        """The HTTP status of a path; None if nobody answers."""
        if self.uds is not None and not self._is_listening(self.uds):
            return None
        try:
            return self.http.get(path).status_code
        except httpx.TransportError:
            return None

    @staticmethod
    def _is_listening(uds: Path) -> bool:
        """Asked beforehand, since httpx leaves a Unix socket open that it cannot connect."""
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(str(uds)) == 0

    def wait_ready(self) -> "ServerProcess":
        def is_ready() -> bool:
            assert self.process.poll() is None, f"the server ended with {self.process.returncode}:\n{self.log}"
            return self.status() == 200

        wait_until(is_ready, START_SECONDS, "the server is ready")
        return self

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def wait_exit(self, seconds: float) -> int:
        """The exit status. Fails if it takes longer."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the server is still there after {seconds} s:\n{self.log}") from None

    def kill(self) -> None:
        """Whatever is left of it, and its folder."""
        self.http.close()
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        shutil.rmtree(self.socket_folder, ignore_errors=True)

    def __enter__(self) -> "ServerProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    # ---- what it says of itself

    def tokens_within(self, seconds: float, most: int) -> int:
        """About how many tokens one sequence gets in that time here and now."""
        num_tokens = 64
        body = {"prompt": "a", "max_tokens": num_tokens, "ignore_eos": True, "temperature": 0}
        started = time.monotonic()
        assert self.http.post("/v1/completions", json=body).status_code == 200
        return max(20, min(most, int(num_tokens * seconds / (time.monotonic() - started))))

    def metrics(self) -> dict[str, float]:
        """Samples by name, the prefix ``octavo:`` left out; labels other than the engine's in braces."""
        response = self.http.get("/metrics")
        assert response.status_code == 200, response.text
        values: dict[str, float] = {}
        for family in text_string_to_metric_families(response.text):
            for sample in family.samples:
                labels = [
                    f"{key}={value}" for key, value in sample.labels.items() if key not in ("model_name", "engine")
                ]
                name = sample.name.removeprefix("octavo:") + ("{" + ",".join(labels) + "}" if labels else "")
                values[name] = sample.value
        return values

    def metric(self, name: str) -> float:
        return self.metrics()[name]

    def settled_metrics(self) -> dict[str, float]:
        """Metrics of an idle engine that has reported all it did: its reports follow its answers a moment later."""
        self.wait_idle(60)
        last = self.metrics()
        while True:
            time.sleep(0.05)
            values = self.metrics()
            if values["steps_total"] == last["steps_total"]:
                return values
            last = values

    def gauges(self) -> tuple[float, ...]:
        """(running, waiting, share of the KV blocks in use)"""
        values = self.metrics()
        return tuple(values[name] for name in GAUGES)

    def wait_load(self, *, running: int | None = None, waiting: int | None = None, seconds: float = 60.0) -> float:
        """Until the gauges say so; the seconds that took."""

        def is_so() -> bool:
            now_running, now_waiting, _ = self.gauges()
            return (running is None or now_running == running) and (waiting is None or now_waiting == waiting)

        return wait_until(is_so, seconds, f"running {running}, waiting {waiting}; it is {self.gauges()}")

    def wait_idle(self, seconds: float = 5.0) -> float:
        """Until nothing runs or waits and every block is free; the seconds that took."""
        return wait_until(lambda: self.gauges() == (0, 0, 0), seconds, f"an idle engine; it is {self.gauges()}")

    def check_healthy(self) -> None:
        """What must hold after every test: idle, still serving, and no bug in the log."""
        self.wait_idle(20)
        body = {"prompt": "a", "max_tokens": 2}
        response = self.http.post("/v1/completions", json=body)
        assert response.status_code == 200, response.text
        log = self.log
        assert "Traceback" not in log, log
        assert "unexpectedly" not in log, log


def only_line(text: str) -> str:
    """The text's one line that is no log line of uvicorn's; fails if there are more."""
    lines = [line for line in text.splitlines() if line.strip() and "uvicorn" not in line]
    assert len(lines) == 1, text
    return lines[0]
