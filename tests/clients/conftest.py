"""One server of the demo model for all clients, started from the main environment, and nothing but this machine.

Clients that have settings in the environment get them before they are imported.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from clients_cases import API_KEY
from clients_tree import MAIN_PYTHON, ROOT
from e2e_process import ServerProcess

LOCAL_HOSTS = {None, "", "localhost", "127.0.0.1", "::1"}
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "HF_EVALUATE_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "LANGSMITH_TRACING": "false",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "TOKENIZERS_PARALLELISM": "false",
    "NO_PROXY": "127.0.0.1,localhost",
}
FOREIGN_KEYS = ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID")


class NetworkGuard:
    """An audit hook: whatever Python code of a client wants with another machine is refused and remembered."""

    def __init__(self) -> None:
        self.refused: list[str] = []

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in ("socket.getaddrinfo", "socket.gethostbyname"):
            host = arguments[0]
        elif event == "socket.connect" and isinstance(arguments[1], tuple):
            host = arguments[1][0]
        else:
            return
        if isinstance(host, bytes):
            host = host.decode()
        if host not in LOCAL_HOSTS:
            self.refused.append(f"{event} {host}")
            raise OSError(f"a client wants to reach {host}")


GUARD = NetworkGuard()
HOME = tempfile.TemporaryDirectory(prefix="clients-")


def pytest_configure() -> None:
    os.environ.update(ENVIRONMENT, HF_HOME=HOME.name, TIKTOKEN_CACHE_DIR=HOME.name)
    for name in FOREIGN_KEYS:
        os.environ.pop(name, None)
    sys.addaudithook(GUARD)


def pytest_unconfigure() -> None:
    HOME.cleanup()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: Any) -> Iterator[None]:
    """The end of a server's log, under the failure it may explain."""
    report = yield
    if report.failed:
        for process in {value for value in item.funcargs.values() if isinstance(value, ServerProcess)}:
            report.sections.append((f"log of {process.base_url}", process.log[-6000:]))
    return report


@pytest.fixture(autouse=True)
def _stays_here() -> Iterator[None]:
    """No test may have asked for another machine, whatever became of it."""
    yield
    refused = GUARD.refused[:]
    GUARD.refused.clear()
    assert refused == []


@pytest.fixture(scope="session")
def main_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("smollm2")
    with ServerProcess(folder, "smollm2", "--max-model-len", "4096", api_key=API_KEY, all_cores=True) as process:
        yield process.wait_ready()


@pytest.fixture
def server(main_process: ServerProcess) -> Iterator[ServerProcess]:
    """The demo model as it is served by default; every request needs ``API_KEY``."""
    yield main_process
    main_process.check_healthy()


@pytest.fixture
def base_url(server: ServerProcess) -> str:
    """What the clients are given."""
    return f"{server.base_url}/v1"


@pytest.fixture(scope="session")
def model_folder() -> Path:
    """The converted demo model, with its tokenizer.json, for clients that want to tokenize themselves."""
    code = "from octavo.model_source import resolve_model; print(resolve_model('smollm2'))"
    found = subprocess.run([MAIN_PYTHON, "-c", code], capture_output=True, text=True, check=True, timeout=240, cwd=ROOT)
    return Path(found.stdout.strip())
