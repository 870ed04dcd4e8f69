"""Kernels with planted faults, compiled as compile_ahead does: a script that prints a line for each."""

import sys

import torch
import triton
import triton.language as tl

from kernels.triton.compile_ahead import compile_launches
from kernels.triton.launch import Launch


@triton.jit(do_not_specialize=["num_rows"])
def scale(x, out, num_rows, factor, SIZE: tl.constexpr):
    row = tl.program_id(0)
    lanes = tl.arange(0, SIZE)
    if row < num_rows:
        tl.store(out + row * SIZE + lanes, tl.load(x + row * SIZE + lanes) * factor)


@triton.jit
def huge_tiles(x, out, SIZE: tl.constexpr):
    """Three tiles that are alive at the same time, more than the registers hold."""
    lanes = tl.arange(0, SIZE)
    first, second, third = tl.load(x + lanes), tl.load(x + SIZE + lanes), tl.load(x + 2 * SIZE + lanes)
    for _ in range(10):
        first, second, third = second * 1.5 + third, third * 0.5 - first, first * second
    tl.store(out + lanes, first + second + third)


@triton.jit
def large_operands(a, b, out, SIZE: tl.constexpr):
    """Operands that no shared memory holds."""
    rows, columns = tl.arange(0, 64)[:, None], tl.arange(0, SIZE)
    left = tl.load(a + rows * SIZE + columns[None, :])
    right = tl.load(b + columns[:, None] * 64 + tl.arange(0, 64)[None, :])
    tl.store(out + rows * 64 + tl.arange(0, 64)[None, :], tl.dot(left, right))


@triton.jit
def wrong(x, out, SIZE: tl.constexpr):
    """Stores a shape that does not fit."""
    tl.store(out + tl.arange(0, SIZE), tl.load(x + tl.arange(0, 2 * SIZE)))


def make_launches() -> dict[str, list[Launch]]:
    x = torch.empty(4096, device="meta")
    half = x.to(torch.bfloat16)
    shifted = x[1:]
    return {
        # Numbers that are not specialized and tensors of one alignment: one kernel.
        "same": [Launch(scale, (x, x, rows, 2.0), {"SIZE": 128}, 4, 2) for rows in (1, 16, 17)],
        "other_alignment": [Launch(scale, (shifted, x, 1, 2.0), {"SIZE": 128}, 4, 2)],
        "spills": [Launch(huge_tiles, (x, x), {"SIZE": 4096}, 1, 2)],
        "too_large": [Launch(large_operands, (half, half, x), {"SIZE": 2048}, 8, 2)],
        "wrong": [Launch(wrong, (x, x), {"SIZE": 64}, 4, 2)],
    }


if __name__ == "__main__":
    for report in compile_launches(make_launches(), 90):
        words = [*report.operations, str(report.programs), report.problem or "fits"]
        sys.stdout.write("\t".join(words) + "\n")
