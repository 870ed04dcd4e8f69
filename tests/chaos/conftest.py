"""The seed, the model and the servers of the chaos tests."""

import logging
import os
import random
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chaos_server import CHAOS, FAULTS, ChaosServer, ChaosStarter
from e2e_models import make_tiny_model
from e2e_starter import log_sections

NUM_LAYERS = 6  # quick enough for many rounds, slow enough that faults find requests under way
SEED = int(os.environ.setdefault("CHAOS_SEED", str(secrets.randbelow(10**6))))  # of all of pytest's processes

logging.getLogger("httpx").setLevel(logging.WARNING)  # a line for each time that a test looks


def pytest_report_header() -> str:
    """How to have the same faults again."""
    return f"the faults of this run: CHAOS_SEED={SEED}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest comes first, so that of two processes none waits for it in the end."""
    items.sort(key=lambda item: item.path.name != "test_chaos_soak.py")


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
        report.sections += log_sections(item)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("models") / "tiny", num_hidden_layers=NUM_LAYERS)


@pytest.fixture(scope="session")
def shared_process(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChaosServer]:
    with ChaosServer(tmp_path_factory.mktemp("chaos"), str(tiny_model), *CHAOS, *FAULTS) as process:
        yield process.wait_ready()
        process.stop_and_check()


@pytest.fixture
def server(shared_process: ChaosServer) -> Iterator[ChaosServer]:
    """One that restarts engines as often as it takes; whole again after every test."""
    yield shared_process
    shared_process.check_whole()
    shared_process.check_quiet_log()


@pytest.fixture
def start(tiny_model: Path, tmp_path: Path) -> Iterator[ChaosStarter]:
    """``start(*flags)``; whatever is left of the servers is killed afterwards."""
    with ChaosStarter(ChaosServer, tmp_path, tiny_model, *CHAOS) as starter:
        yield starter
