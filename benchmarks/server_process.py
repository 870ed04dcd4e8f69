"""``octavo serve`` as a process of its own on a free port, and the CPU time of each process that it is made of."""

import ctypes
import os
import shlex
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ipc.errors import ConfigError

READY = "octavo is ready: "
STOP_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class RunningServer:
    """``engines``: the gateway's descendants."""

    url: str
    gateway: int
    engines: tuple[int, ...]

    def cpu(self) -> tuple[float, float]:
        """Seconds that the gateway and the engine have computed so far."""
        return cpu_seconds(self.gateway), sum(cpu_seconds(pid) for pid in self.engines)


@contextmanager
def octavo_server(model: str, name: str, flags: str) -> Iterator[RunningServer]:
    """Serve ``model`` as ``name`` with further ``flags`` until the block ends. Raises ConfigError if it does not start,
    with the last thing that it said."""
    with serve_command(model, name, 0, "warning", flags) as process:
        assert process.stderr is not None
        url = wait_ready(process.stderr)
        threading.Thread(target=drain, args=(process.stderr,), daemon=True).start()
        yield RunningServer(url, process.pid, tuple(descendants(process.pid)))


@contextmanager
def serve_command(model: str, name: str, port: int, log_level: str, flags: str) -> Iterator["subprocess.Popen[str]"]:
    """``octavo serve``, just started, its log on ``stderr``; ended with the block."""
    command = [sys.executable, "-m", "octavo.cli", "serve", model, "--served-model-name", name]
    command += ["--port", str(port), "--log-level", log_level, *shlex.split(flags)]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_ready(log: IO[str]) -> str:
    """The URL in the line that says it works; reads the line after it, too, a request to try.

    Raises ConfigError when the log ends before.
    """
    last: deque[str] = deque(maxlen=1)
    for line in log:
        if line.startswith(READY):
            log.readline()
            return line.removeprefix(READY).strip()
        last.append(line.strip())
    raise ConfigError(f"octavo serve did not start: {last[0] if last else 'it said nothing'}")


def drain(log: IO[str]) -> None:
    """Read to the end, so that the writer never waits; what is said in a measurement is shown."""
    for line in log:
        sys.stderr.write(line)


def descendants(pid: int) -> list[int]:
    """Children, their children and so on, of those that live."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (parent := parent_of(int(entry.name))) is not None:
            children.setdefault(parent, []).append(int(entry.name))
    found, left = [], [pid]
    while left:
        own = children.get(left.pop(), [])
        found += own
        left += own
    return found


def parent_of(pid: int) -> int | None:
    """None when it has ended meanwhile."""
    try:
        return parse_parent(Path(f"/proc/{pid}/stat").read_text())
    except OSError:
        return None


def parse_parent(stat: str) -> int:
    """From a line of /proc/PID/stat: the name in it may hold spaces and brackets."""
    return int(stat.rpartition(")")[2].split()[1])


def cpu_seconds(pid: int) -> float:
    """User and system time of a process, threads that have ended included.

    By the process's CPU clock: /proc/PID/stat counts in hundredths of a second, more than a gateway needs for a
    round with one client. Raises OSError if the process has ended.
    """
    clock = ctypes.c_int()
    error = ctypes.CDLL(None).clock_getcpuclockid(pid, ctypes.byref(clock))
    if error:
        raise OSError(error, os.strerror(error), f"process {pid}")
    return time.clock_gettime(clock.value)
