"""A server whose faults a test makes: by signals, and by files that ``hooks/sitecustomize.py`` in it looks for."""

import contextlib
import json
import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from e2e_process import ServerProcess, is_alive, wait_until
from e2e_starter import TINY, Starter

HOOKS = Path(__file__).parent / "hooks"
HEARTBEAT_SECONDS = 3.0
PATIENCE = 120.0  # for anything that takes a moment on an idle machine
# A pool that 64 requests fill, so that some of them are preempted; and the least patience with an engine that hangs.
CHAOS = (*TINY, "--max-model-len", "4096", "--max-num-seqs", "48", "--num-kv-blocks", "1024", "--block-size", "16")
FAULTS = ("--engine-max-restarts", "1000", "--engine-heartbeat-timeout", str(HEARTBEAT_SECONDS))


class ChaosServer(ServerProcess):
    """``octavo serve`` with hooks. ``poison``: see ``sitecustomize.py``."""

    def __init__(self, folder: Path, *arguments: str, poison: Mapping[str, Any] | None = None, **options: Any) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        if poison is not None:
            (folder / "poison.json").write_text(json.dumps(poison))
        with _environment(CHAOS_FOLDER=str(folder), PYTHONPATH=str(HOOKS)):
            super().__init__(folder, *arguments, **options)

    # ---- its engine

    def engine_pid(self) -> int | None:
        """The living engine, if there is one now."""
        pids = [pid for pid in self.engine_pids() if runs(pid, b"engine_core")]
        return max(pids, default=None)

    def wait_engine(self, *, other_than: int | None = None) -> int:
        """The engine, as soon as there is one, not counting the one that was there before."""
        found: list[int] = []

        def is_there() -> bool:
            assert self.process.poll() is None, f"the server ended with {self.process.returncode}"
            pid = self.engine_pid()
            if pid is not None and pid != other_than:
                found.append(pid)
            return bool(found)

        wait_until(is_there, PATIENCE, f"there is another engine than {other_than}:\n{self.log[-3000:]}")
        return found[0]

    def num_restarts(self) -> int:
        """Engines that came in another's place."""
        return int(self.metric("engine_restarts_total"))

    # ---- faults

    def hang_next_step(self) -> None:
        """The next step of the engine never ends, though the process lives and beats."""
        (self.folder / "hang").touch()

    @property
    def is_about_to_hang(self) -> bool:
        """No step has come since ``hang_next_step``."""
        return (self.folder / "hang").exists()

    def shift_clock(self, seconds: float) -> None:
        """Its wall clocks are wrong by so much from now on."""
        unfinished = self.folder / "clock.new"
        unfinished.write_text(str(seconds))
        unfinished.replace(self.folder / "clock")

    # ---- what must hold afterwards

    def check_whole(self) -> None:
        """It is idle, nothing is held anywhere, and it serves."""
        self.wait_idle(PATIENCE)

        def is_let_go() -> bool:
            values = self.metrics()
            return not any(values[name] for name in ("num_requests_in_flight", "num_queued_tokens"))

        wait_until(is_let_go, PATIENCE, "admission holds no place for anybody")
        response = self.http.post("/v1/completions", json={"prompt": "a", "max_tokens": 2})
        assert response.status_code == 200, response.text
        self.wait_idle(PATIENCE)

    def check_quiet_log(self) -> None:
        """No bug has shown itself in the log."""
        log = self.log
        assert "Traceback" not in log, log[-6000:]
        assert "unexpectedly" not in log, log[-6000:]

    def stop_and_check(self) -> None:
        """It ends in order, with nothing left of it."""
        self.terminate()
        assert self.wait_exit(PATIENCE) == 0
        wait_until(lambda: not self.processes(), PATIENCE, f"no process is left; {self.processes()}")
        assert list(self.socket_folder.glob("octavo-*")) == []


ChaosStarter = Starter[ChaosServer]


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    """It may have ended by itself meanwhile."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def wait_gone(pid: int, seconds: float = PATIENCE) -> float:
    """Until the process has ended; the seconds that took."""
    return wait_until(lambda: not is_alive(pid), seconds, f"process {pid} has ended")


def refusal(server: ServerProcess) -> httpx.Response:
    """What one more request is answered."""
    return server.http.post("/v1/completions", json={"prompt": "a", "max_tokens": 2})


def runs(pid: int, module: bytes) -> bool:
    """Whether that process is one of that module."""
    try:
        return module in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


@contextmanager
def _environment(**variables: str) -> Iterator[None]:
    """For a process that is started in the block."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
