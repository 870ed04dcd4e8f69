"""A real Prometheus with the configuration that is shipped; only who is scraped, and how often, is the test's."""

import json
import math
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import httpx
import yaml
from dashboards_expressions import JOB, PROMETHEUS, RULES, shipped_yaml
from e2e_process import free_port, wait_until

UNPACKED = Path(__file__).parents[2] / "build" / "prometheus"


def program(name: str) -> str | None:
    """prometheus or promtool: the system's, or what scripts/prometheus.sh put into build."""
    return shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}{os.pathsep}{UNPACKED}")


def is_there() -> bool:
    return program("prometheus") is not None and program("promtool") is not None


MISSING = "prometheus and promtool are not there: make test-dashboards unpacks Debian's"


def promtool(*arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    """What it says; it may fail."""
    path = program("promtool")
    assert path is not None, MISSING
    return subprocess.run([path, *arguments], input=text, capture_output=True, text=True, timeout=240, check=False)


class Prometheus:
    """Scrapes ``targets`` (by job; octavo with the key) each second from the start of the block to its end."""

    def __init__(self, folder: Path, targets: dict[str, str], key: str) -> None:
        (folder / "octavo.key").write_text(key)
        config = shipped_yaml("prometheus/prometheus.yaml")
        config["global"] = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
        config["rule_files"] = [str(PROMETHEUS / name) for name in RULES]
        (scrape,) = config["scrape_configs"]
        assert scrape["job_name"] == JOB
        scrape["authorization"] = {"credentials_file": str(folder / "octavo.key")}
        config["scrape_configs"] = [
            {**scrape, "job_name": job, "static_configs": [{"targets": [target]}]} for job, target in targets.items()
        ]
        self.config = folder / "prometheus.yaml"
        self.config.write_text(yaml.safe_dump(config))
        self._log = folder / "prometheus.log"
        self._data = folder / "data"
        port = free_port()
        self._address = f"127.0.0.1:{port}"
        self._http = httpx.Client(base_url=f"http://{self._address}", timeout=60)

    def __enter__(self) -> "Prometheus":
        command = [
            str(program("prometheus")),
            f"--config.file={self.config}",
            f"--storage.tsdb.path={self._data}",
            f"--web.listen-address={self._address}",
        ]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            wait_until(self._is_ready, 60, "Prometheus is ready")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._http.close()

    def _is_ready(self) -> bool:
        assert self._process.poll() is None, self._log.read_text()
        try:
            return self._http.get("/-/ready").status_code == 200
        except httpx.TransportError:
            return False

    def get(self, path: str, **parameters: Any) -> Any:
        """``data`` of an answer of its API."""
        response = self._http.get(f"/api/v1/{path}", params=parameters)
        answer = json.loads(response.text)
        assert answer["status"] == "success", (parameters, answer.get("error"))
        return answer["data"]

    def values(self, promql: str, time: float | None = None) -> list[float]:
        """Of every series that the expression has then, but what is not a number."""
        found = self.get("query", query=promql, **({} if time is None else {"time": time}))["result"]
        return [value for series in found if not math.isnan(value := float(series["value"][1]))]

    def total(self, promql: str, time: float | None = None) -> float:
        """Their sum."""
        return sum(self.values(promql, time))
