"""CPU kernels in C++, compiled for this host: a backend of ``kernels.ops``."""

from kernels.native.library import Library
from kernels.native.ops import NativeOps


def create(isa: str | None = None, threads: int | None = None) -> NativeOps:
    """``isa``: avx512, avx2 or generic, else the best of this host. ``threads``: all allowed cores by default.

    Raises ``kernels.native.build.NativeUnavailable`` where there is no compiler, or the build fails.
    """
    return NativeOps(Library.load(isa, threads))
