"""Overload against a real server: nobody waits without end, and who comes when told is served."""

import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from e2e_http import CHAT, COMP, Exchange, chat, comp, long_runner
from e2e_process import ServerProcess, wait_until
from e2e_starter import Starter

from octavo.tenants_file import key_hash

KEY, OPERATOR = "oct-user-0123456789abcdef", "oct-operator-0123456789abcdef"


@dataclass
class Crowd:
    """Clients who come again when they are told to."""

    server: ServerProcess
    body: Any
    firsts: list[bool] = field(default_factory=list)
    retries: list[bool] = field(default_factory=list)
    refusal_seconds: list[float] = field(default_factory=list)
    texts: set[str] = field(default_factory=set)

    def client(self) -> None:
        num_refused = 0
        while True:
            started = time.monotonic()
            with Exchange(self.server, COMP, self.body, timeout=120) as exchange:
                exchange.read_head()
                is_admitted = exchange.status == 200
                if num_refused < 2:
                    (self.firsts, self.retries)[num_refused].append(is_admitted)
                if is_admitted:
                    self.texts.add(exchange.read_body().decode().partition('"text":')[2].partition(",")[0])
                    return
                assert exchange.status == 429, exchange.status
                self.refusal_seconds.append(time.monotonic() - started)
                seconds = int(exchange.headers["retry-after"])
            num_refused += 1
            time.sleep(seconds)

    def run(self, num_clients: int) -> None:
        threads = [threading.Thread(target=self.client) for _ in range(num_clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def test_a_burst_of_clients_who_obey(start: Starter[ServerProcess]) -> None:
    server = start("--max-num-seqs", "4", "--max-num-queued-reqs", "8", "--max-model-len", "512").wait_ready()
    tokens = server.tokens_within(0.25, 200)
    crowd = Crowd(server, comp("The lighthouse", max_tokens=tokens, ignore_eos=True))
    crowd.run(8)
    assert crowd.firsts == [True] * 8
    crowd.firsts.clear()
    crowd.run(64)
    assert sum(crowd.firsts) < 32
    # How many of them depends on what else the machine does; the simulation says how many it is if nothing does. If all
    # came again after a second, an eighth would find a place.
    assert sum(crowd.retries) >= 0.2 * len(crowd.retries)
    assert len(crowd.texts) == 1
    metrics = server.settled_metrics()
    assert metrics["requests_refused_total{reason=queued_reqs}"] == len(crowd.refusal_seconds)
    assert metrics["num_requests_in_flight"] == 0
    assert metrics["request_success_total{finished_reason=length}"] >= 72
    server.check_healthy()


def test_places_of_who_left_and_n(start: Starter[ServerProcess]) -> None:
    """Eight places: two run, some with n = 3 wait; whoever leaves makes room at once."""
    server = start("--max-num-seqs", "2", "--max-num-queued-reqs", "8", "--max-queue-wait", "86400").wait_ready()
    waiting = [Exchange(server, COMP, long_runner(n=n, max_tokens=400)) for n in (2, 3, 3)]
    wait_until(lambda: server.metric("num_requests_in_flight") == 8, 30, "eight places are taken")
    for path, body in ((COMP, comp()), (CHAT, chat()), (COMP, comp(n=3))):
        with Exchange(server, path, body) as refused:
            assert refused.read_head().status == 429
            assert int(refused.headers["retry-after"]) >= 1
    waiting.pop().close()
    wait_until(lambda: server.metric("num_requests_in_flight") == 5, 30, "three places are free")
    with Exchange(server, COMP, comp(n=3, max_tokens=2)) as admitted:
        for exchange in waiting:
            exchange.close()
        assert admitted.read_head().status == 200
    server.wait_idle(30)


def test_tenants(start: Starter[ServerProcess], tmp_path: Path) -> None:
    path = tmp_path / "tenants.toml"
    path.write_text(
        f'[user]\nkeys = ["{key_hash(KEY)}"]\nconcurrent_requests = 1\ntokens_per_minute = 100000\n'
        f'[operator]\nkeys = ["{key_hash(OPERATOR)}"]\nscopes = ["metrics", "admin"]\n'
    )
    server = start("--api-keys-file", str(path), "--max-model-len", "512")
    server.http.headers["authorization"] = f"Bearer {KEY}"
    wait_until(lambda: server.status() == 200, 120, "the server is ready")
    with Exchange(server, COMP, long_runner(max_tokens=400), headers={"Authorization": f"Bearer {KEY}"}) as first:
        first.read_events(1)
        assert first.headers["x-ratelimit-limit-requests"] == "1"
        second = server.http.post(COMP, json=comp())
        assert (second.status_code, second.headers["x-ratelimit-remaining-requests"]) == (429, "0")
        assert int(second.headers["retry-after"]) >= 1
    answer = {}

    def is_served() -> bool:
        response = server.http.post(COMP, json=comp(max_tokens=20, ignore_eos=True, return_cost=True))
        answer["response"] = response
        return response.status_code == 200

    wait_until(is_served, 20, "the tenant's slot is free again")
    response = answer["response"]
    assert int(response.headers["x-ratelimit-remaining-tokens"]) < 100_000
    cost = response.json()["usage"]["cost"]
    assert 0 < cost["device_seconds"] < 20
    assert cost["kv_block_seconds"] > 0
    for path_, status in (("/metrics", 403), ("/admin/usage", 403), ("/v1/models", 200)):
        assert server.http.get(path_).status_code == status
    server.http.headers["authorization"] = f"Bearer {OPERATOR}"
    assert server.http.post(COMP, json=comp()).status_code == 403
    rows = {row["tenant"]: row for row in server.http.get("/admin/usage").json()["data"]}
    assert rows["user"]["requests"] == 2
    assert rows["user"]["output_tokens"] >= 21
    # The stream that its client left was charged as well.
    assert rows["user"]["device_seconds"] > cost["device_seconds"]
    assert server.metrics()["tenant_requests_total{tenant=user}"] == 2
    assert KEY not in server.log
    assert "Traceback" not in server.log


def test_unusable_files_end_the_start(start: Starter[ServerProcess], tmp_path: Path) -> None:
    path = tmp_path / "tenants.toml"
    path.write_text('[user]\nkeys = ["not a hash"]\n')
    server = start("--api-keys-file", str(path))
    assert server.wait_exit(60) == 2
    assert f"--api-keys-file: {path}: [user]: keys" in server.log


pytestmark = pytest.mark.timeout(300)
