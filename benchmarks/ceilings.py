"""What this machine can do at most, measured beside the kernels: bytes read a second, and arithmetic."""

import time
from collections.abc import Callable

import torch

from kernels.native.bandwidth import LOOPS, read_memory
from kernels.native.library import Library
from kernels.ops import Ops

READ_BYTES = 512 * 2**20  # more than any cache of a machine that this is for
NUM_TRIALS = 3
NUM_KEPT = 2
PEAK_ROWS, PEAK_INPUTS, PEAK_OUTPUTS = 256, 576, 96  # outputs: of each thread


class ReadCeiling:
    """The best of the read loops over memory that no cache holds. Finds out at first which loops are worth a trial."""

    def __init__(self, library: Library, num_bytes: int = READ_BYTES) -> None:
        self.num_bytes = num_bytes
        self._library = library
        self._data = torch.ones(num_bytes, dtype=torch.uint8)
        best = [max(self._measure(loop) for _ in range(NUM_TRIALS)) for loop in range(len(LOOPS))]
        self._loops = sorted(range(len(LOOPS)), key=lambda loop: best[loop], reverse=True)[:NUM_KEPT]

    @property
    def name(self) -> str:
        """Which loop was the fastest at first."""
        return LOOPS[self._loops[0]]

    def read(self) -> None:
        """Everything once, with the loop that was the fastest at first."""
        read_memory(self._library, self._data, self._loops[0])

    def measure(self) -> float:
        """Bytes a second, now."""
        return max(self._measure(loop) for loop in self._loops)

    def _measure(self, loop: int) -> float:
        started = time.perf_counter()
        read_memory(self._library, self._data, loop)
        return self._data.numel() / (time.perf_counter() - started)


class TilePeaks:
    """Our own register tiles at their best: a linear whose weight and inputs stay in the second-level cache, by dtype
    of the weight, and the same product by torch, whose bfloat16 is oneDNN's."""

    def __init__(self, ops: Ops, num_threads: int, num_rows: int = PEAK_ROWS, num_inputs: int = PEAK_INPUTS) -> None:
        num_outputs = PEAK_OUTPUTS * num_threads
        self.shape = f"[{num_rows}, {num_inputs}] x [{num_inputs}, {num_outputs}]"
        self.num_flops = 2 * num_rows * num_inputs * num_outputs
        x, weight = torch.randn(num_rows, num_inputs), torch.randn(num_outputs, num_inputs)
        x16, weight16 = x.to(torch.bfloat16), weight.to(torch.bfloat16)
        packed, packed16 = ops.pack_linear(weight), ops.pack_linear(weight16)
        packed8 = ops.pack_linear(weight16, quantization="int8")
        self.calls: dict[str, Callable[[], object]] = {
            "bfloat16": lambda: ops.linear(x16, packed16),
            "int8": lambda: ops.linear(x16, packed8),
            "float32": lambda: ops.linear(x, packed),
        }
        self.peers: dict[str, Callable[[], object]] = {
            "bfloat16 torch.mm": lambda: torch.mm(x16, weight16.t()),
            "float32 torch.mm": lambda: torch.mm(x, weight.t()),
        }
