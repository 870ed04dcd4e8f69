"""The reference backend: every operation in plain torch. The others' oracle and the fallback without a compiler."""

from kernels.ops import Ops
from kernels.reference.ops import ReferenceOps


def create() -> Ops:
    """The backend, probed on this host."""
    return ReferenceOps()
