"""The CUDA backend: every operation in Triton, for NVIDIA GPUs of compute capability 8.0 and up.

With TRITON_INTERPRET=1 set before this is imported the same kernels run on the CPU, slowly: so they are tested.
"""

from kernels.ops import Ops
from kernels.triton.jit.arithmetic import INTERPRETED
from kernels.triton.ops import TritonOps
from kernels.triton.target import find_target, interpreter


def create(*, batch_invariant: bool = False) -> Ops:
    """The backend for torch's current CUDA device. Raises UnsupportedDevice, one line, if none will do.

    ``batch_invariant``: a row's bits depend on that row alone, at some cost; else libraries multiply matrices, and a
    row's last bits may depend on how many rows there are.
    """
    return TritonOps(find_target(batch_invariant=batch_invariant))


def create_interpreted(*, batch_invariant: bool = False) -> Ops:
    """The same on the CPU, for tests. Raises RuntimeError if the kernels were defined without TRITON_INTERPRET=1."""
    if not INTERPRETED:
        raise RuntimeError("kernels.triton was imported before TRITON_INTERPRET=1 was set")
    return TritonOps(interpreter(batch_invariant=batch_invariant))
