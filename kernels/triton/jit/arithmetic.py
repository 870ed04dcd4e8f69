"""exp, log, rounding and matrix products for all kernels: the formulas of kernels.reference.elementwise, operation for
operation, so that what is made of them alone has the reference's bits.

Triton's own ``/`` and ``sqrt`` are approximate: ``tl.div_rn`` and ``tl.sqrt_rn`` round correctly.
"""

import triton
import triton.language as tl

INTERPRETED: tl.constexpr = tl.constexpr(bool(triton.knobs.runtime.interpret))
LOG2_E: tl.constexpr = tl.constexpr(1.4426950216293335)
LN2_HIGH: tl.constexpr = tl.constexpr(0.693145751953125)
LN2_LOW: tl.constexpr = tl.constexpr(1.428606765330187e-06)
ROUND_TO_INTEGER: tl.constexpr = tl.constexpr(12582912.0)
SQRT_HALF_BITS: tl.constexpr = tl.constexpr(0x3F3504F3)


@triton.jit
def round_to_even(x):
    """float32 of magnitude below 2²² to the nearest whole number, ties to even."""
    return (x + ROUND_TO_INTEGER) - ROUND_TO_INTEGER


@triton.jit
def exp_nonpositive(x):
    """exp of float32 x ≤ 0; 0 below −87.69, exactly 1 at 0, NaN stays NaN."""
    x = tl.where(x < -88.0, -88.0, x)
    shifted = x * LOG2_E + ROUND_TO_INTEGER
    scale = ((shifted.to(tl.int32, bitcast=True) + 127) << 23).to(tl.float32, bitcast=True)
    n = shifted - ROUND_TO_INTEGER
    r = (x - n * LN2_HIGH) - n * LN2_LOW
    tail = r * 0.0013950486900284886 + 0.008368889801204205
    tail = tail * r + 0.04166620597243309
    tail = tail * r + 0.166665181517601
    tail = tail * r + 0.5
    return ((tail * r * r + r) + 1.0) * scale


@triton.jit
def log_of_parts(exponent, fraction):
    """ln(2^exponent · (1 + fraction)) for −½ ≤ fraction < 0.42, both float32."""
    s = tl.div_rn(fraction, fraction + 2.0)
    square = s * s
    twice = s * 2.0
    tail = square * 0.14015644788742065 + 0.13998930156230927
    tail = tail * square + 0.2001088559627533
    tail = tail * square + 0.3333320617675781
    return ((tail * square * twice + twice) + exponent * LN2_LOW) + exponent * LN2_HIGH


@triton.jit
def split_exponent(x):
    """(k, f) as float32 with x = 2^k · (1 + f) and sqrt(½) ≤ 1 + f < sqrt(2); x float32, positive, normal."""
    bits = x.to(tl.int32, bitcast=True)
    exponent = (bits - SQRT_HALF_BITS) >> 23
    fraction = (bits - (exponent << 23)).to(tl.float32, bitcast=True) - 1.0
    return exponent.to(tl.float32), fraction


@triton.jit
def log(x):
    """ln of float32 x, positive and normal."""
    exponent, fraction = split_exponent(x)
    return log_of_parts(exponent, fraction)


@triton.jit
def dot(a, b, acc):
    """acc + a · b in float32: bfloat16, fp8 or float32 operands, the last without rounding them to tf32."""
    if INTERPRETED:
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    return tl.dot(a, b, acc, input_precision="ieee")
