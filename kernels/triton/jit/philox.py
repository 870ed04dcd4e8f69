"""Philox4x32-10 (Salmon et al., SC 2011) and the exponentials drawn from it: kernels.reference.philox, bit for bit.

One call gives the words of four neighbouring token ids (design 7.4).
"""

import triton
import triton.language as tl

from kernels.triton.jit import arithmetic

MULTIPLIER0: tl.constexpr = tl.constexpr(0xD2511F53)
MULTIPLIER1: tl.constexpr = tl.constexpr(0xCD9E8D57)
INCREMENT0: tl.constexpr = tl.constexpr(0x9E3779B9)
INCREMENT1: tl.constexpr = tl.constexpr(0xBB67AE85)


@triton.jit
def philox(c0, c1, c2, c3, k0, k1):
    """Ten rounds over counters and keys, all uint32. The halves of one 64-bit product cost one multiplication."""
    for _ in tl.static_range(10):
        product0 = c0.to(tl.uint64) * MULTIPLIER0
        product1 = c2.to(tl.uint64) * MULTIPLIER1
        c0 = (product1 >> 32).to(tl.uint32) ^ c1 ^ k0
        c2 = (product0 >> 32).to(tl.uint32) ^ c3 ^ k1
        c1 = product1.to(tl.uint32)
        c3 = product0.to(tl.uint32)
        k0 = k0 + INCREMENT0
        k1 = k1 + INCREMENT1
    return c0, c1, c2, c3


@triton.jit
def token_words(first_id, position, stream, seed, COUNT: tl.constexpr):
    """h uint32 [COUNT] of the ids from ``first_id`` on, a multiple of 4, as COUNT is; the others int64 scalars."""
    groups = (first_id // 4 + tl.arange(0, COUNT // 4)).to(tl.uint32)
    nothing = tl.zeros_like(groups)
    c1 = nothing + (position & 0xFFFFFFFF).to(tl.uint32)
    c2 = nothing + (stream & 0xFFFFFFFF).to(tl.uint32)
    k0 = (seed & 0xFFFFFFFF).to(tl.uint32)
    k1 = ((seed >> 32) & 0xFFFFFFFF).to(tl.uint32)
    w0, w1, w2, w3 = philox(groups, c1, c2, nothing, k0, k1)
    return tl.interleave(tl.interleave(w0, w2), tl.interleave(w1, w3))


@triton.jit
def exponential(words):
    """E float32 of h uint32. What is rounded once to float32 is an odd integer below 2³², over 2³³."""
    is_high = words >= 0x80000000
    odd = (tl.where(is_high, words ^ 0xFFFFFFFF, words) << 1) + 1
    argument = odd.to(tl.float32) * 1.1641532182693481e-10  # 2⁻³³
    exponent, fraction = arithmetic.split_exponent(argument)
    exponent = tl.where(is_high, exponent, 0.0)
    fraction = tl.where(is_high, fraction, -argument)
    return -arithmetic.log_of_parts(exponent, fraction)


@triton.jit
def log_exponential(words):
    """ln E float32 of h uint32."""
    return arithmetic.log(exponential(words))
