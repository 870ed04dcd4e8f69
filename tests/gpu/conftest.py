"""Tests that need a CUDA device: without one a module of them is skipped as a whole, and not even imported.

``--device cpu`` (by hand, with this folder as pytest's argument) runs them here as far as that goes: kernels in
Triton's interpreter, engines on the native kernels.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from kernels.ops import Ops, load

HERE = Path(__file__).parent
SHARED = (HERE.parent / "kernels", HERE.parent / "engine_core")
sys.path += [str(path) for path in (HERE, *SHARED) if str(path) not in sys.path]

NEED_NO_GPU = {"test_gpu_bench.py", "test_gpu_device_ops.py"}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device", choices=["cuda", "cpu"], default="cuda", help="where the tests of a GPU run")


def pytest_configure(config: pytest.Config) -> None:
    if device_of(config) == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"  # read when kernels are defined, whoever imports them first


def device_of(config: pytest.Config) -> str:
    """The option is not there when this folder is only one of those that tests are collected from."""
    return str(config.getoption("--device", default="cuda"))


def why_not(config: pytest.Config) -> str | None:
    """What keeps tests of a GPU from running."""
    if device_of(config) == "cpu":
        return None
    if not torch.cuda.is_available():
        return "torch sees no CUDA device"
    if os.environ.get("TRITON_INTERPRET") == "1":
        return "in this process kernels are interpreted: run this folder's tests by themselves"
    return None


class SkippedModule(pytest.Module):
    """Tests that cannot run."""

    def collect(self) -> list[pytest.Item | pytest.Collector]:
        pytest.skip(why_not(self.config) or "", allow_module_level=True)


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    if module_path.name in NEED_NO_GPU or why_not(parent.config) is None:
        return None
    return SkippedModule.from_parent(parent, path=module_path)


@pytest.fixture(scope="session")
def device(request: pytest.FixtureRequest) -> str:
    return device_of(request.config)


@pytest.fixture(scope="session", params=["triton", "triton-invariant"])
def ops(request: pytest.FixtureRequest, device: str) -> Ops:
    """The kernels where they belong, for tests whose tensors are the host's."""
    from device_ops import on_device

    from kernels.triton import create, create_interpreted

    make = create_interpreted if device == "cpu" else create
    return on_device(make(batch_invariant=request.param == "triton-invariant"), torch.device(device))


@pytest.fixture(scope="session")
def reference_ops() -> Ops:
    return load("reference")


@pytest.fixture(scope="session")
def name(device: str) -> str:
    """Of the small model."""
    return "smollm2-135m" if device == "cuda" else "tiny"


@pytest.fixture
def make_driver(device: str, name: str, tmp_path: Path) -> Iterator[Any]:
    """Makes engines, of the small model unless another is named; each test's are closed behind it."""
    from gpu_engine import Driver
    from gpu_models import write_model

    threads, drivers = torch.get_num_threads(), []

    def make(model: str = name, **settings: object) -> Driver:
        sizes = {"max_model_len": 512, "max_num_seqs": 64, "max_num_batched_tokens": 512, "num_kv_blocks": 1200}
        drivers.append(Driver(write_model(model, tmp_path / model), device, **(sizes | settings)))
        return drivers[-1]

    yield make
    for driver in drivers:
        driver.close()
    torch.set_num_threads(threads)
