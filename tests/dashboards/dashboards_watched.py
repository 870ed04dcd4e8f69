"""Some seconds of load on a server, another server with vLLM's names, and a Prometheus that watched both."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dashboards_load import OPERATOR, Load, bearer, flags
from dashboards_prometheus import Prometheus
from e2e_http import COMP, comp
from e2e_models import make_tiny_model
from e2e_process import ServerProcess, wait_until
from e2e_starter import TINY

NUM_LAYERS = 6  # quick, and slow enough that what is killed finds requests under way
VLLM = ("--metrics-prefix", "vllm", "--max-model-len", "512", "--num-kv-blocks", "64")


@dataclass(frozen=True)
class Watched:
    """``octavo`` and ``vllm``: what /metrics said at the end, under either prefix; ``time``: of that moment."""

    prometheus: Prometheus
    octavo: str
    vllm: str
    time: float

    def values(self, promql: str) -> list[float]:
        """At that moment."""
        return self.prometheus.values(promql, self.time)

    def labels(self, promql: str) -> list[dict[str, str]]:
        """Of each series then."""
        series: list[dict[str, Any]] = self.prometheus.get("query", query=promql, time=self.time)["result"]
        return [each["metric"] for each in series]


@contextmanager
def watch(folder: Path) -> Iterator[Watched]:
    """Everything that happens, and then Prometheus, which has seen it all."""
    model = str(make_tiny_model(folder / "tiny", num_hidden_layers=NUM_LAYERS))
    with (
        ServerProcess(folder / "octavo", model, *TINY, *flags(folder)) as octavo,
        ServerProcess(folder / "vllm", model, *TINY, *VLLM) as vllm,
    ):
        for server in (octavo, vllm):
            server.wait_ready()
        targets = {"octavo": f"127.0.0.1:{octavo.port}", "vllm": f"127.0.0.1:{vllm.port}"}
        with Prometheus(folder, targets, OPERATOR) as prometheus:
            wait_until(lambda: prometheus.total("sum(up)") == 2, 60, "both are scraped")
            for _ in range(3):
                assert vllm.http.post(COMP, json=comp("The keeper", max_tokens=30, ignore_eos=True)).status_code == 200
            load = Load(octavo)
            load.run()

            def has_seen_a_queue() -> bool:
                """Prometheus looks each second, and a crowd may be through within one: there is another one then."""
                most = "max(max_over_time(octavo:num_requests_waiting[10m]))"
                if prometheus.total(most) > 0:
                    return True
                load.crowd()
                return False

            wait_until(has_seen_a_queue, 60, "Prometheus has seen requests wait")
            wait_until(lambda: load.metric("num_requests_running") == 0, 60, "nothing runs any more")
            last = load.metric("generation_tokens_total")

            def has_seen_all() -> bool:
                seen = prometheus.total("sum(octavo:generation_tokens_total)")
                return seen == last and prometheus.total("count(job_model:octavo_ttft_slow:ratio_rate6h)") == 1

            wait_until(has_seen_all, 60, "Prometheus has seen it all")
            text = octavo.http.get("/metrics", headers=bearer(OPERATOR)).text
            yield Watched(prometheus, text, vllm.http.get("/metrics").text, time.time())
