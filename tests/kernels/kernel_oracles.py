"""Independent float64 (or exact integer) references for the kernels, written from the formulas, not from a backend."""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch import Tensor


def same_bits(first: Tensor, second: Tensor) -> bool:
    """Equal shapes, dtypes and bits, the sign of zero included."""
    assert first.dtype == second.dtype, (first.dtype, second.dtype)
    assert first.shape == second.shape, (first.shape, second.shape)
    return torch.equal(first.reshape(-1).view(torch.uint8), second.reshape(-1).view(torch.uint8))


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    x = x.double()
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight.double()


def silu_and_mul(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.double().chunk(2, dim=-1)
    return gate * torch.sigmoid(gate) * up


def rotary(x: Tensor, positions: Tensor, cos_sin: Tensor) -> Tensor:
    """The rotation as a product of complex numbers."""
    cos, sin = cos_sin.double()[positions].chunk(2, dim=-1)
    half = cos.shape[-1]
    pairs = torch.complex(x[..., :half].double(), x[..., half : 2 * half].double())
    turned = pairs * torch.complex(cos, sin)[:, None]
    return torch.cat([turned.real, turned.imag, x[..., 2 * half :].double()], dim=-1)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    positions: Tensor,
    scale: float,
    window: int | None,
    soft_cap: float | None = None,
) -> Tensor:
    """q [T, H, D] of one sequence, k and v [L, G, D] → float64 [T, H, D]."""
    heads_per_kv_head = q.shape[1] // k.shape[1]
    k, v = (part.double().repeat_interleave(heads_per_kv_head, dim=1) for part in (k, v))
    scores = torch.einsum("thd,lhd->thl", q.double(), k) * scale
    if soft_cap is not None:
        scores = soft_cap * (scores / soft_cap).tanh()
    kv_positions = torch.arange(len(k))
    hidden = kv_positions > positions[:, None]
    if window is not None:
        hidden |= kv_positions <= positions[:, None] - window
    scores.masked_fill_(hidden[:, None], -math.inf)
    return torch.einsum("thl,lhd->thd", scores.softmax(-1), v)


def quantize_heads(rows: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """float32 [..., D] → multiples in ``dtype`` [..., D] and scales [..., 1]: the largest magnitude becomes 127 in
    int8, 448 in fp8."""
    scales = rows.abs().amax(-1, keepdim=True) / (127 if dtype == torch.int8 else 448)
    multiples = torch.where(scales > 0, rows / scales, rows)
    if dtype == torch.int8:
        return multiples.round().to(dtype), scales  # ties to even
    return nearest_fp8(multiples), scales


def nearest_fp8(x: Tensor) -> Tensor:
    """float32 [...] of magnitude up to 448 → e4m3: a sign, 4 bits of exponent (bias 7) and 3 of fraction, the nearest
    number, of two the even one."""
    codes = torch.arange(127)
    exponents, fractions = (codes // 8).double(), (codes % 8).double() / 8
    grid = torch.where(exponents > 0, (1 + fractions) * 2 ** (exponents - 7), fractions * 2.0**-6)
    magnitudes = x.double().abs()
    above = torch.searchsorted(grid, magnitudes.contiguous()).clamp(1, 126)
    below = above - 1
    is_nearer = (grid[above] - magnitudes) - (magnitudes - grid[below])  # below 0: the upper one
    code = torch.where((is_nearer < 0) | ((is_nearer == 0) & (above % 2 == 0)), above, below)
    return (code + 128 * x.signbit()).to(torch.uint8).view(torch.float8_e4m3fn)


def as_cached(rows: Tensor, dtype: torch.dtype) -> Tensor:
    """What a cache of ``dtype`` keeps of float32 ``rows`` [..., D], as float64."""
    if dtype not in (torch.int8, torch.float8_e4m3fn):
        return rows.to(dtype).double()
    multiples, scales = quantize_heads(rows, dtype)
    return multiples.double() * scales.double()


def philox(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Philox4x32-10 with Python integers, from the paper's definition."""
    left0, right0, left1, right1 = counter[0], counter[1], counter[2], counter[3]
    for step in range(10):
        key0 = (key[0] + step * 0x9E3779B9) % 2**32
        key1 = (key[1] + step * 0xBB67AE85) % 2**32
        high0, low0 = divmod(0xD2511F53 * left0, 2**32)
        high1, low1 = divmod(0xCD9E8D57 * left1, 2**32)
        left0, right0, left1, right1 = high1 ^ right0 ^ key0, low1, high0 ^ right1 ^ key1, low0
    return left0, right0, left1, right1


def gumbel(num_ids: int, position: int, stream: int, seed: int) -> np.ndarray[Any, Any]:
    """−ln E of every id in float64. The seed is taken as 64 bits."""
    key = (seed % 2**32, (seed >> 32) % 2**32)
    words = [philox((group, position, stream, 0), key) for group in range((num_ids + 3) // 4)]
    h = np.array(words, dtype=np.float64).reshape(-1)[:num_ids]
    low = -np.log1p(-(np.minimum(h, 2.0**31) + 0.5) / 2.0**32)
    high = -np.log((2.0**32 - h - 0.5) / 2.0**32)
    return -np.log(np.where(h < 2**31, low, high))


def adjusted_logits(
    logits: list[float], history: list[int], request: dict[str, Any], num_token_ids: int
) -> list[float]:
    """Penalties, bias and masks one after the other, one token at a time."""
    result = list(logits)
    prompt = request.get("num_prompt_tokens", 0)
    repetition = request.get("repetition_penalty", 1.0)
    for token in set(history):
        result[token] = result[token] / repetition if result[token] > 0 else result[token] * repetition
    for token in history[prompt:]:
        result[token] -= request.get("frequency_penalty", 0.0)
    for token in set(history[prompt:]):
        result[token] -= request.get("presence_penalty", 0.0)
    for token, value in request.get("bias", {}).items():
        result[token] += value
    banned = set(range(num_token_ids, len(logits))) | set(request.get("bans", []))
    if request.get("allowed"):
        banned |= set(range(len(logits))) - set(request["allowed"])
    if request.get("bitmask") is not None:
        banned |= set(range(len(logits))) - set(request["bitmask"])
    for word in request.get("bad_words", []):
        prefix = word[:-1]
        if len(prefix) <= len(history) and history[len(history) - len(prefix) :] == prefix:
            banned.add(word[-1])
    return [-math.inf if token in banned else value for token, value in enumerate(result)]


def kept_tokens(scaled: list[float], top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0) -> set[int]:
    """Which ids top_k, then top_p, then min_p leave, by their definitions."""
    kept = {token for token, value in enumerate(scaled) if value > -math.inf}
    if top_k > 0:
        kept = {token for token in kept if sum(scaled[other] > scaled[token] for other in kept) < top_k}
    largest = max(scaled[token] for token in kept)
    weights = {token: Fraction(math.exp(scaled[token] - largest)) for token in kept}
    if top_p < 1.0:
        limit = Fraction(top_p) * sum(weights.values())
        kept = {
            token
            for token in kept
            if scaled[token] == largest
            or sum(weights[other] for other in weights if scaled[other] > scaled[token]) < limit
        }
    return {token for token in kept if weights[token] >= min_p}


def logprobs(logits: Tensor) -> Tensor:
    return logits.double().log_softmax(-1)
