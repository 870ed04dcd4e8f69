"""Oracles of the native linear tests, written from the definitions."""

from torch import Tensor


def segment_slices(num_inputs: int, segments: int) -> list[slice]:
    size = num_inputs // segments
    return [slice(start, start + size) for start in range(0, num_inputs, size)]


def tree_sum(parts: list[Tensor]) -> Tensor:
    """Neighbours in pairs, level by level; an odd one at the end goes up."""
    while len(parts) > 1:
        pairs = [parts[i] + parts[i + 1] for i in range(0, len(parts) - 1, 2)]
        parts = pairs + parts[2 * len(pairs) :]
    return parts[0]


def quantize_rows(x: Tensor) -> Tensor:
    """What is left of float32 rows after symmetric int8 quantization, as float64: one scale, max|x| / 127, a row."""
    most = x.abs().amax(1, keepdim=True)
    integers = (x * (127.0 / most)).round()  # ties to even
    assert integers.abs().max() <= 127
    return integers.double() * (most / 127.0).double()
