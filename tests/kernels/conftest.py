"""The backends under test. A new backend adds its name to ``BACKENDS`` and must pass everything here.

Those of Triton run here in its interpreter, which takes each program of a grid in turn: tests of long inputs have a
shorter one for them.
"""

from collections.abc import Iterator

import pytest
import torch

from kernels.native.build import NativeUnavailable
from kernels.ops import Ops, load
from kernels.triton import create_interpreted

BACKENDS = ["reference", "native", "triton", "triton-invariant"]


@pytest.fixture(scope="session", params=BACKENDS)
def ops(request: pytest.FixtureRequest) -> Ops:
    if request.param.startswith("triton"):
        return create_interpreted(batch_invariant=request.param == "triton-invariant")
    try:
        return load(request.param)
    except NativeUnavailable as error:
        pytest.skip(f"{request.param} kernels: {error}")


@pytest.fixture(autouse=True)
def one_thread_and_seed() -> Iterator[None]:
    """Tests run on one thread and may change that: on busy cores a second one mostly waits. Each draws the same numbers
    whatever ran before it."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    yield
    torch.set_num_threads(before)
