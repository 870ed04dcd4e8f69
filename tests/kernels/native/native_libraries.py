"""Libraries for the native tests, each loaded once: the host's own and those of forced instruction sets."""

import ctypes
from functools import cache

import pytest
import torch
from torch import Tensor

from kernels.native.library import Library


@cache
def library_of(isa: str | None = None) -> Library:
    """Skips the test where this host cannot run ``isa``."""
    try:
        return Library.load(isa, threads=1)
    except ValueError as error:
        pytest.skip(str(error))


def allocate(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """An output full of what must not be left of it."""
    return torch.full(shape, float("nan"), dtype=dtype)


def run(library: Library, name: str, prepared: tuple[Tensor, ctypes.Structure]) -> Tensor:
    """Call ``name`` with prepared arguments and return what it wrote."""
    out, args = prepared
    library.call(name, args)
    return out
