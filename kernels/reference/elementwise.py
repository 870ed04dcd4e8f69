"""exp, log and sums whose bits depend on nothing but their inputs.

torch's own exp and log use one formula for full vectors and another for the tail of a range, and its sums follow
the shape. Here everything is made of single correctly rounded operations (add, multiply, divide, integer and bit
operations), which give a lane the same bits wherever it lies. No fused torch function (addcmul, lerp, add with
alpha) may be used: a compiler may contract it in one path only. Coefficients: minimax fits made for this file.
"""

import torch
from torch import Tensor

LOG2_E = 1.4426950216293335
LN2_HIGH = 0.693145751953125  # 15 bits: its product with an exponent is exact
LN2_LOW = 1.428606765330187e-06
ROUND_TO_INTEGER = 12582912.0  # 1.5 · 2^23: adding it leaves the nearest integer in the low bits
EXP_TAIL = (0.0013950486900284886, 0.008368889801204205, 0.04166620597243309, 0.166665181517601, 0.5)
ATANH_TAIL = (0.14015644788742065, 0.13998930156230927, 0.2001088559627533, 0.3333320617675781)
SQRT_HALF_BITS = 0x3F3504F3


def horner(variable: Tensor, coefficients: tuple[float, ...]) -> Tensor:
    """The polynomial with ``coefficients``, highest power first, each step rounded twice (multiply, add)."""
    result = variable * coefficients[0]
    result.add_(coefficients[1])
    for coefficient in coefficients[2:]:
        result.mul_(variable).add_(coefficient)
    return result


def exp_nonpositive(x: Tensor) -> Tensor:
    """exp of float32 x ≤ 0, within 1.5 ulp; 0 below −87.69 (−inf included), exactly 1 at 0, NaN stays NaN.

    exp(x) = 2^n · exp(r), n the integer nearest to x / ln 2, |r| ≤ ln 2 / 2.
    """
    x = x.clamp(min=-88.0)  # from here down n is −127, whose scale below is 0
    shifted = (x * LOG2_E).add_(ROUND_TO_INTEGER)
    scale = shifted.view(torch.int32).add(127).bitwise_left_shift_(23).view(torch.float32)
    n = shifted.sub_(ROUND_TO_INTEGER)
    r = x.sub_(n * LN2_HIGH).sub_(n.mul_(LN2_LOW))
    tail = horner(r, EXP_TAIL).mul_(r).mul_(r)
    return tail.add_(r).add_(1.0).mul_(scale)


def tanh(x: Tensor) -> Tensor:
    """tanh of float32 x, within 2⁻²³ (not ulp: near 0 digits cancel); NaN stays NaN.

    tanh|x| = (1 − e) / (1 + e), e = exp(−2|x|).
    """
    decay = exp_nonpositive(x.abs().mul_(-2.0))
    return (1.0 - decay).div_(decay.add_(1.0)).copysign_(x)


def split_exponent(x: Tensor) -> tuple[Tensor, Tensor]:
    """(k, f) as float32 with x = 2^k · (1 + f) exactly and sqrt(½) ≤ 1 + f < sqrt(2); x float32, positive, normal."""
    bits = x.view(torch.int32)
    exponent = bits.sub(SQRT_HALF_BITS).bitwise_right_shift_(23)
    fraction = bits.sub(exponent.bitwise_left_shift(23)).view(torch.float32).sub_(1.0)
    return exponent.to(torch.float32), fraction


def log_of_parts(exponent: Tensor, fraction: Tensor) -> Tensor:
    """ln(2^exponent · (1 + fraction)) for −½ ≤ fraction < 0.42, both float32, within 3 ulp.

    ln(1 + f) = 2 · atanh(s) with s = f / (2 + f), |s| ≤ ⅓.
    """
    s = fraction / (fraction + 2.0)
    square = s * s
    twice = s.mul_(2.0)
    log_fraction = horner(square, ATANH_TAIL).mul_(square).mul_(twice).add_(twice)
    return log_fraction.add_(exponent * LN2_LOW).add_(exponent * LN2_HIGH)


def log(x: Tensor) -> Tensor:
    """Natural logarithm of float32 x, positive and normal, within 3 ulp."""
    return log_of_parts(*split_exponent(x))


def tree_sum(x: Tensor) -> Tensor:
    """Sum over the last dimension, kept as size 1, in a fixed tree: the upper half is added to the lower until one
    is left (of an odd number the middle one waits). The order depends on the size alone. **x is overwritten.**"""
    size = x.shape[-1]
    while size > 1:
        half = (size + 1) // 2
        x[..., : size - half] += x[..., half:size]
        size = half
    return x[..., :1]
