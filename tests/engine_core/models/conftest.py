from collections.abc import Iterator

import pytest
import torch

import kernels.ops


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    """Tiny models lose more to waking a second thread than they gain."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def ops() -> kernels.ops.Ops:
    return kernels.ops.load("reference")
