"""How rows of logits are cut for the sampler and for log-probabilities."""

from dataclasses import dataclass

import triton
from torch import Tensor

MOST_IDS = 4096
"""Of a chunk: 16 values for each of 256 threads. At 128k ids even one row keeps 32 multiprocessors busy."""
NUM_WARPS = 8
"""Chosen, as MOST_IDS is, by calculation for sm_80 to sm_100; neither has been timed. Sums of log-probabilities have
their order from these."""


@dataclass(frozen=True, slots=True)
class Chunks:
    """``size``: ids in a chunk. ``padded``: the number of chunks as a power of 2."""

    size: int
    count: int
    padded: int

    @classmethod
    def of(cls, vocab_size: int) -> "Chunks":
        """The same for every number of rows."""
        size = min(MOST_IDS, max(16, triton.next_power_of_2(vocab_size)))
        count = triton.cdiv(vocab_size, size)
        return cls(size, count, max(2, triton.next_power_of_2(count)))


def check_logits(logits: Tensor) -> None:
    """Raises ValueError for logits that the kernels cannot read."""
    if logits.dim() != 2 or (logits.shape[1] > 1 and logits.stride(1) != 1):
        raise ValueError(f"logits must have two dimensions, the last contiguous, not {tuple(logits.shape)}")
