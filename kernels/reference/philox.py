"""Counter-based random numbers: Philox4x32-10 (Salmon et al., SC 2011) and the exponentials drawn from it.

A number depends on seed, position, stream and token id, never on what was drawn before (design 7.4).
"""

import torch
from torch import Tensor

from kernels.reference.elementwise import log, log_of_parts, split_exponent

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_INCREMENTS = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10
MASK = 0xFFFFFFFF
HALF = 1 << 31

Words = tuple[Tensor, Tensor, Tensor, Tensor]


def philox(counter: Words, key: tuple[int, int]) -> Words:
    """Ten rounds over counter words i64 [n] in 0 … 2³² − 1. A 64-bit product wraps, but its halves are right."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        product0, product1 = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]
        c0 = (product1 >> 32).bitwise_and_(MASK).bitwise_xor_(c1).bitwise_xor_(k0)
        c2 = (product0 >> 32).bitwise_and_(MASK).bitwise_xor_(c3).bitwise_xor_(k1)
        c1, c3 = product1.bitwise_and_(MASK), product0.bitwise_and_(MASK)
        k0, k1 = (k0 + KEY_INCREMENTS[0]) & MASK, (k1 + KEY_INCREMENTS[1]) & MASK
    return c0, c1, c2, c3


def token_words(groups: Tensor, position: int, stream: int, seed: int) -> Tensor:
    """The four words of each group of four token ids, i64 [n, 4]. ``seed``: 64 bits, signed or not."""
    counter = (groups, torch.full_like(groups, position & MASK), torch.full_like(groups, stream & MASK))
    words = philox((*counter, torch.zeros_like(groups)), (seed & MASK, seed >> 32 & MASK))
    return torch.stack(words, dim=-1)


def all_token_words(num_ids: int, position: int, stream: int, seed: int, device: torch.device) -> Tensor:
    """h of the ids 0 … num_ids − 1, i64 [num_ids]."""
    groups = torch.arange((num_ids + 3) // 4, device=device)
    return token_words(groups, position, stream, seed).flatten()[:num_ids]


def some_token_words(ids: Tensor, position: int, stream: int, seed: int) -> Tensor:
    """h of the given ids, i64 [n]."""
    words = token_words(ids >> 2, position, stream, seed)
    return words.gather(1, (ids & 3).unsqueeze(1)).squeeze(1)


def exponential(words: Tensor) -> Tensor:
    """E float32 of h i64 in 0 … 2³² − 1: −log1p(−(h + ½)·2⁻³²) below 2³¹, else −ln((2³² − h − ½)·2⁻³²).

    Both arguments are odd integers below 2³² over 2³³, exact until one rounding to nearest float32. E > 0.
    """
    doubled = words * 2 + 1
    argument = torch.minimum(doubled, (1 << 33) - doubled).to(torch.float32).mul_(2.0**-33)
    exponent, fraction = split_exponent(argument)
    # ln(1 − u) below, ln(argument) above; multiplying by exact zeros and ones selects faster than torch.where.
    is_high = (words >= HALF).to(torch.float32)
    exponent.mul_(is_high)
    fraction.mul_(is_high).sub_(argument.mul_(1.0 - is_high))
    return log_of_parts(exponent, fraction).neg_()


def log_exponential(words: Tensor) -> Tensor:
    """ln E float32, between −22.9 and 3.14: minus a standard Gumbel variable."""
    return log(exponential(words))
