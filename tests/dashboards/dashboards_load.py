"""Some seconds in the life of a server: everything happens to it that a dashboard has a panel for."""

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

from e2e_http import COMP, Exchange, comp, long_runner
from e2e_process import ServerProcess, wait_until

from octavo.tenants_file import key_hash

ANNA, BERT, OPERATOR = "oct-anna-0123456789abcdef", "oct-bert-0123456789abcdef", "oct-operator-0123456789abcdef"
STORY = "It was a dark and stormy night; the rain fell in torrents. " * 2
PROMPTS = [f"Chapter {number}. {STORY}" for number in range(6)]
# A pool of 24 blocks for four sequences: they preempt each other, and prefixes move down to the host and the disk.
SMALL = ("--max-model-len", "512", "--max-num-seqs", "4", "--num-kv-blocks", "24", "--max-num-batched-tokens", "128")


def flags(folder: Path) -> tuple[str, ...]:
    """Of a server with tenants and with both tiers."""
    tenants = folder / "tenants.toml"
    tenants.write_text(
        f'[anna]\nkeys = ["{key_hash(ANNA)}"]\n'
        f'[bert]\nkeys = ["{key_hash(BERT)}"]\nconcurrent_requests = 1\n'
        f'[operator]\nkeys = ["{key_hash(OPERATOR)}"]\nscopes = ["metrics", "admin"]\n'
    )
    tiers = ("--kv-host-memory-bytes", "64MiB", "--kv-disk-path", str(folder / "kv"))
    return (*SMALL, *tiers, "--api-keys-file", str(tenants), "--engine-max-restarts", "10")


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def together(calls: list[Callable[[], object]]) -> None:
    """All at once; returns when all have returned."""
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class Load:
    """What clients do to ``server``. Each part ends when its traces are there."""

    def __init__(self, server: ServerProcess) -> None:
        self.server = server

    def run(self) -> None:
        """All of it."""
        self.crowd()
        self.crowd()
        self.refusal()
        self.hang_up()
        self.deadlines()
        self.restart()
        self.crowd()
        self.ask(comp("a", max_tokens=-1), status=400)

    def ask(self, body: object, key: str = ANNA, status: int = 200) -> None:
        answer = self.server.http.post(COMP, json=body, headers=bearer(key))
        assert answer.status_code == status, answer.text

    def metric(self, name: str, label: str = "") -> float:
        """The sum of the samples of that name in /metrics, of those with ``label`` in them."""
        text = self.server.http.get("/metrics", headers=bearer(OPERATOR)).text
        lines = (line for line in text.splitlines() if line.startswith(f"octavo:{name}{{") and label in line)
        return sum(float(line.rpartition(" ")[2]) for line in lines)

    def crowd(self) -> None:
        """More prompts than there are places and blocks; the second time their prefixes are known."""
        bodies = [comp(prompt, max_tokens=100, ignore_eos=True, temperature=1) for prompt in PROMPTS]
        together([lambda body=body: self.ask(body) for body in [*bodies, comp("Once", n=3, max_tokens=20)]])  # type: ignore[misc]

    def refusal(self) -> None:
        """Bert may have one request at a time."""
        with Exchange(self.server, COMP, long_runner(max_tokens=300), headers=bearer(BERT)) as first:
            first.read_events(1)
            self.ask(comp(), BERT, 429)
            first.ended_well()

    def hang_up(self) -> None:
        """A client that leaves."""
        with Exchange(self.server, COMP, long_runner(max_tokens=300), headers=bearer(ANNA)) as left:
            left.read_events(2)
        wait_until(lambda: self.metric("request_success_total", "abort") == 1, 30, "it is known that it left")

    def deadlines(self) -> None:
        """Six that cannot all be met: they pass while requests run or wait, or requests are refused for them."""
        late = long_runner(max_tokens=370, deadline_ms=150)

        def miss() -> None:
            with Exchange(self.server, COMP, late, headers=bearer(ANNA)) as exchange:
                exchange.read_head()
                exchange.read_body()

        together([miss] * 6)

    def restart(self) -> None:
        """The engine is killed under a stream, which goes on."""
        with Exchange(self.server, COMP, long_runner(max_tokens=120), headers=bearer(ANNA), timeout=240) as stream:
            stream.read_events(5)
            for pid in self.engines():
                os.kill(pid, signal.SIGKILL)
            stream.ended_well()
        wait_until(lambda: self.metric("engine_restarts_total") == 1, 60, "there is another engine")

    def engines(self) -> list[int]:
        """Its engine; what else belongs to the server goes with that by itself."""
        return [
            pid
            for pid in self.server.engine_pids()
            if b"engine_core" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        ]
