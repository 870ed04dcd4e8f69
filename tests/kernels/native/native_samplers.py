"""What the tests of the native sampler and logprobs share: the two calls, kinds of logits, random requests."""

import math
import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kernels.native.library import Library
from kernels.native.sampling import prepare_logprobs, prepare_sample
from kernels.ops import Logprobs, SampleRows, Samples

FLOAT32_MAX = torch.finfo(torch.float32).max
SHARES = [1e-45, 1e-9, 0.01, 0.3, 0.5, 0.9, 0.99, 1 - 2.0**-24, 1.0]


class Sampler:
    """Prepares, then calls, as the backend does."""

    def __init__(self, library: Library) -> None:
        self.library = library

    def sample(self, logits: Tensor, tokens: Tensor, rows: SampleRows) -> Samples:
        samples, args = prepare_sample(logits, tokens, rows, self.empty)
        self.library.call("octavo_sample", args)
        return samples

    def logprobs(self, logits: Tensor, ids: Tensor, num_top: int) -> Logprobs:
        logprobs, args = prepare_logprobs(logits, ids, num_top, self.empty)
        self.library.call("octavo_logprobs", args)
        return logprobs

    @staticmethod
    def empty(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Outputs begin as anything."""
        return torch.full(shape, 77).to(dtype)


LOGITS: dict[str, Callable[[Tensor], Tensor]] = {
    "ordinary": lambda x: x * 3,
    "flat": lambda x: x * 0.3,
    "equal": lambda x: x * 0 + 1,
    "zeros of both signs": lambda x: torch.where(x > 0, 0.0, -0.0),
    "many ties": lambda x: (x * 4).round() / 2,
    "two values": lambda x: torch.where(x > 1, 10.0, 0.0),
    "huge": lambda x: (x * 1e38).clamp(-FLOAT32_MAX, FLOAT32_MAX),
    "denormal": lambda x: x * 1e-39,
    "all magnitudes": lambda x: (x * 20).exp() * x.sign(),
    "in order": lambda x: torch.linspace(-10, 10, x.shape[1]).expand_as(x).contiguous(),
    "half masked": lambda x: torch.where(x > 0, x * 3, -math.inf),
    "peaked": lambda x: x + 20 * (torch.arange(x.shape[1]) < 9),
}


def random_request(choose: random.Random, vocab: int, history: list[int]) -> dict[str, Any]:
    """A few of all parameters; ids may lie outside the vocabulary."""

    def ids(most: int) -> list[int]:
        return [choose.randrange(-2, vocab + 3) for _ in range(choose.randrange(most))]

    end = choose.randrange(len(history) + 3)
    request: dict[str, Any] = {
        "positions": end,
        "num_prompt_tokens": choose.randrange(end + 2),
        "seeds": choose.randrange(-(2**63), 2**63),
        "streams": choose.randrange(4),
        "temperature": choose.choice([0.0, 0.003, 0.1, 0.8, 1.0, 3.0]),
    }
    optional: dict[str, Callable[[], Any]] = {
        "top_k": lambda: choose.choice([1, 2, 7, max(1, vocab // 2), vocab, 2 * vocab]),
        "top_p": lambda: choose.choice(SHARES),
        "min_p": lambda: choose.choice([1e-9, 0.001, 0.05, 0.5, 1.0]),
        "repetition_penalty": lambda: choose.uniform(0.5, 2),
        "frequency_penalty": lambda: choose.uniform(-2, 2),
        "presence_penalty": lambda: choose.uniform(-2, 2),
        "bias": lambda: {token: choose.uniform(-5, 5) for token in ids(6)},
        "bans": lambda: ids(12),
        "allowed": lambda: ids(max(2, vocab)),
        "bitmask": lambda: [token for token in range(vocab) if choose.random() < 0.7],
        "bad_words": lambda: [[*history[:end][-2:], 0], [vocab - 1, 1], [3], [5] * 40],
    }
    return request | {name: value() for name, value in optional.items() if choose.random() < 0.25}


def assert_equal(found: Samples, expected: Samples, is_sound: Tensor) -> None:
    """Logprobs of rows that are not sound are NaN; all else is the same."""
    assert torch.equal(found.is_valid, expected.is_valid)
    assert torch.equal(found.token_ids, expected.token_ids)
    if expected.logprobs is None:
        assert found.logprobs is None
        return
    assert found.logprobs is not None
    assert torch.equal(found.logprobs.ranks, expected.logprobs.ranks)
    assert torch.equal(found.logprobs.top_ids, expected.logprobs.top_ids)
    for name in ("logprobs", "top_logprobs"):
        values, wanted = getattr(found.logprobs, name), getattr(expected.logprobs, name)
        assert torch.equal(values[is_sound], wanted[is_sound]), "the sum is taken in the same fixed tree"
        assert values[~is_sound].isnan().all()


def sound_rows(logits: Tensor) -> Tensor:
    return ~(logits.isnan() | (logits == math.inf)).any(dim=1) & (logits > -math.inf).any(dim=1)
