"""float32 to narrower formats, to the nearest and ties to even.

A GPU has instructions for that. Triton's interpreter cuts off instead, or rounds without a carry, so it gets formulas.
"""

import triton
import triton.language as tl

from kernels.triton.jit.arithmetic import INTERPRETED, round_to_even


@triton.jit
def round_to(x, dtype: tl.constexpr):
    """x f32 in ``dtype``: float32, bfloat16, float8e4nv (at most 448 in magnitude, or NaN) or int8 (whole numbers)."""
    if INTERPRETED:
        if dtype == tl.bfloat16:
            return bfloat16_bits(x).to(tl.bfloat16, bitcast=True)
        elif dtype == tl.float8e4nv:
            return float8_bits(x).to(tl.float8e4nv, bitcast=True)
        else:
            return x.to(dtype)
    else:
        return x.to(dtype)


@triton.jit
def bfloat16_bits(x):
    """The bits u16 of x f32 rounded to bfloat16."""
    bits = x.to(tl.int32, bitcast=True)
    rounded = (bits.to(tl.int64) + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return tl.where(x == x, rounded, 0x7FC0).to(tl.uint16)


@triton.jit
def float8_bits(x):
    """The bits u8 of x f32 rounded to float8e4nv."""
    bits = x.to(tl.int32, bitcast=True)
    magnitude = bits & 0x7FFFFFFF
    normal = ((magnitude + 0x7FFFF + ((magnitude >> 20) & 1)) >> 20) - (120 << 3)
    is_small = magnitude < 0x3C800000  # below 2⁻⁶ in steps of 2⁻⁹
    subnormal = round_to_even(tl.where(is_small, tl.abs(x), 0.0) * 512.0).to(tl.int32)
    code = tl.minimum(tl.where(is_small, subnormal, normal), 0x7E)
    return (tl.where(x == x, code, 0x7F) | ((bits >> 24) & 0x80)).to(tl.uint8)
