"""Reading memory with the kernels' own threads: the ceiling that a benchmark holds kernels against.

Calls src/bandwidth.cpp and nothing else; who measures brings the clock and takes the best of the loops.
"""

import ctypes

import torch
from torch import Tensor

from kernels.native.library import Library

LOOPS = (
    *("1 vector", "4 vectors", "4 vectors, 1 KiB ahead", "4 vectors, 4 KiB ahead"),
    *("4 streams", "4 streams, 1 KiB ahead", "4 streams of 2 vectors", "8 streams"),
)
"""Names of ``kLoops`` in src/bandwidth.cpp, in its order."""

VECTOR_BYTES = 64


class ReadMemoryArgs(ctypes.Structure):
    """``octavo_read_memory_args`` of bandwidth.cpp."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("num_bytes", ctypes.c_int64),
        ("loop", ctypes.c_int64),
        ("sum", ctypes.POINTER(ctypes.c_int64)),
    )


def read_memory(library: Library, data: Tensor, loop: int) -> int:
    """Read ``data``, contiguous and a multiple of 64 bytes, once with ``LOOPS[loop]``; the sum of its 32-bit words
    modulo 2^32. Raises ValueError for a loop or data that do not exist so."""
    num_bytes = data.numel() * data.itemsize
    if not 0 <= loop < len(LOOPS):
        raise ValueError(f"loop {loop}: there are {len(LOOPS)}")
    if not data.is_contiguous() or data.device != torch.device("cpu") or num_bytes % VECTOR_BYTES:
        raise ValueError(f"memory is read in whole vectors of {VECTOR_BYTES} bytes, one after the other")
    total = ctypes.c_int64()
    args = ReadMemoryArgs(data.data_ptr(), num_bytes, loop, ctypes.pointer(total))
    library.call("octavo_read_memory", args)
    return total.value
