"""The seed, the model and the servers of the chaos tests."""

import logging
import os
import random
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chaos_server import CHAOS, FAULTS, ChaosServer
from e2e_models import make_tiny_model

NUM_LAYERS = 6  # quick enough for many rounds, slow enough that faults find requests under way
SEED = int(os.environ.get("CHAOS_SEED", secrets.randbelow(10**6)))

logging.getLogger("httpx").setLevel(logging.WARNING)  # a line for each time that a test looks


def pytest_report_header() -> str:
    """How to have the same faults again."""
    return f"the faults of this run: CHAOS_SEED={SEED}"


@pytest.fixture
def seed() -> int:
    """Of all that is random here, but the scheduling of processes."""
    return SEED


@pytest.fixture
def dice(seed: int, request: pytest.FixtureRequest) -> random.Random:
    """A test's own, so that one test alone has the faults that it has among all."""
    return random.Random(f"{seed} {request.node.name}")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: Any) -> Iterator[None]:
    """The seed, and the end of each server's log, under the failure it may explain."""
    outcome = yield
    report = outcome.get_result()  # type: ignore[attr-defined]
    if report.failed:
        report.sections.append(("to have it again", f"CHAOS_SEED={SEED}"))
        for name, value in getattr(item, "funcargs", {}).items():
            for process in value.started if isinstance(value, Starter) else [value]:
                if isinstance(process, ChaosServer):
                    report.sections.append((f"log of {name}", process.log[-6000:]))


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("models") / "tiny", num_hidden_layers=NUM_LAYERS)


@pytest.fixture(scope="session")
def shared_process(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChaosServer]:
    with ChaosServer(tmp_path_factory.mktemp("chaos"), tiny_model, *CHAOS, *FAULTS) as process:
        yield process.wait_ready()
        process.stop_and_check()


@pytest.fixture
def server(shared_process: ChaosServer) -> Iterator[ChaosServer]:
    """One that restarts engines as often as it takes; whole again after every test."""
    yield shared_process
    shared_process.check_whole()
    shared_process.check_quiet_log()


class Starter:
    """Starts servers of a test's own, with the tiny model."""

    def __init__(self, tiny_model: Path, folder: Path) -> None:
        self._tiny_model, self._folder = tiny_model, folder
        self.started: list[ChaosServer] = []

    def __call__(self, *arguments: str, **options: Any) -> ChaosServer:
        folder = self._folder / f"chaos-{len(self.started)}"
        self.started.append(ChaosServer(folder, self._tiny_model, *CHAOS, *arguments, **options))
        return self.started[-1]


@pytest.fixture
def start(tiny_model: Path, tmp_path: Path) -> Iterator[Starter]:
    """``start(*flags)``; whatever is left of the servers is killed afterwards."""
    starter = Starter(tiny_model, tmp_path)
    yield starter
    for process in starter.started:
        process.kill()
