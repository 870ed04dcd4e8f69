"""Servers that the end-to-end tests share. Each is checked for health after every test that used it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from e2e_models import make_tiny_model
from e2e_process import ServerProcess
from e2e_starter import PATIENT, TINY, Starter, log_sections

# One core for each server: see ServerProcess. Starting takes a few seconds, so most tests share one.
MAX_MODEL_LEN = 32768
MAX_NUM_SEQS = 16


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Waits here have deadlines of their own; on a busy machine several may come close to them in one test."""
    for item in items:
        if Path(__file__).parent in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(600))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: Any) -> Iterator[None]:
    """The end of each server's log, under the failure it may explain."""
    outcome = yield
    report = outcome.get_result()  # type: ignore[attr-defined]
    if report.failed:
        report.sections += log_sections(item)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def main_process(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    sizes = ("--max-model-len", str(MAX_MODEL_LEN), "--max-num-seqs", str(MAX_NUM_SEQS), "--num-kv-blocks", "16384")
    with ServerProcess(tmp_path_factory.mktemp("main"), str(tiny_model), *TINY, *sizes, *PATIENT) as process:
        yield process.wait_ready()


@pytest.fixture
def server(main_process: ServerProcess) -> Iterator[ServerProcess]:
    """The tiny model with room for everything: context 32768, 16 sequences."""
    yield main_process
    main_process.check_healthy()


@pytest.fixture(scope="session")
def small_process(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    sizes = ("--max-model-len", "512", "--max-num-seqs", "4", "--num-kv-blocks", "24", "--block-size", "16")
    budget = ("--max-num-batched-tokens", "128", "--async-scheduling")  # steps overlap: nothing may show it
    with ServerProcess(tmp_path_factory.mktemp("small"), str(tiny_model), *TINY, *sizes, *budget, *PATIENT) as process:
        yield process.wait_ready()


@pytest.fixture
def small_server(small_process: ServerProcess) -> Iterator[ServerProcess]:
    """A pool of 24 blocks of 16 for four sequences and a context of 512: preemption is cheap to provoke."""
    yield small_process
    small_process.check_healthy()


@pytest.fixture(scope="session")
def single_process(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    sizes = ("--max-model-len", "32768", "--max-num-seqs", "1", "--max-num-batched-tokens", "2")
    with ServerProcess(tmp_path_factory.mktemp("single"), str(tiny_model), *TINY, *sizes, *PATIENT) as process:
        yield process.wait_ready()


@pytest.fixture
def single_server(single_process: ServerProcess) -> Iterator[ServerProcess]:
    """One sequence and two tokens at a time: whatever is second waits, and prompts take long."""
    yield single_process
    single_process.check_healthy()


@pytest.fixture(scope="session")
def configured_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """From a file, on a Unix socket, with keys, two names, a policy and a model that has defaults of its own."""
    folder = tmp_path_factory.mktemp("configured")
    model = make_tiny_model(folder / "greedy")
    (model / "generation_config.json").write_text(json.dumps({"eos_token_id": 2, "temperature": 0.3, "top_k": 1}))
    config = folder / "octavo.yaml"
    config.write_text(
        f"model: {model}\nload-format: dummy\ndtype: float32\nmax_model_len: 512\nmax-num-seqs: 16\n"
        "served-model-name: [tiny, other]\napi-key: [a-key-that-the-command-line-replaces]\n"
        "scheduling-policy: priority\n"
    )
    uds = folder / "socket"
    with ServerProcess(folder, "--config", str(config), api_key="the-key", uds=uds) as process:
        yield process.wait_ready()
        process.terminate()
        assert process.wait_exit(30) == 0
        assert not uds.exists()
        assert "the-key" not in process.log


@pytest.fixture
def configured(configured_process: ServerProcess) -> Iterator[ServerProcess]:
    """Context 512, priorities, greedy unless told otherwise; ``the-key`` is needed, and sent by ``http``."""
    yield configured_process
    configured_process.check_healthy()


@pytest.fixture
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.base_url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        yield client


@pytest.fixture
def start(tiny_model: Path, tmp_path: Path) -> Iterator[Starter[ServerProcess]]:
    """``start(*flags)``; whatever is left of the servers is killed afterwards."""
    with Starter(ServerProcess, tmp_path, tiny_model, *TINY) as starter:
        yield starter
