"""Philox4x32-10 against the published vectors, and the exponentials made from it against float64."""

import math

import kernel_oracles as oracle
import pytest
import torch
from kernel_oracles import same_bits

from kernels.reference.philox import all_token_words, exponential, log_exponential, philox, some_token_words

# Random123 1.14, tests/kat_vectors: counter, key, output.
KNOWN_ANSWERS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def words(text: str) -> list[int]:
    return [int(word, 16) for word in text.split()]


@pytest.mark.parametrize(("counter", "key", "output"), KNOWN_ANSWERS)
def test_known_answers(counter: str, key: str, output: str) -> None:
    c0, c1, c2, c3 = words(counter)
    k0, k1 = words(key)
    result = philox((torch.tensor([c0]), torch.tensor([c1]), torch.tensor([c2]), torch.tensor([c3])), (k0, k1))
    assert [int(word) for word in result] == words(output)
    assert list(oracle.philox((c0, c1, c2, c3), (k0, k1))) == words(output), "the tests' own oracle"


@pytest.mark.parametrize("seed", [0, 1, 2**32, 2**63 - 1, -1, -(2**63), 0x123456789ABCDEF0])
def test_counter_and_key(seed: int) -> None:
    """counter = (token_id >> 2, position, stream, 0), word token_id & 3, key = low and high half of the seed."""
    position, stream = 2**31 + 5, 3
    found = all_token_words(11, position, stream, seed, torch.device("cpu"))
    key = (seed % 2**32, (seed % 2**64) // 2**32)
    expected = [oracle.philox((token // 4, position, stream, 0), key)[token % 4] for token in range(11)]
    assert found.tolist() == expected
    chosen = torch.tensor([10, 3, 0, 7])
    assert torch.equal(some_token_words(chosen, position, stream, seed), found[chosen])


def test_exponential_is_accurate() -> None:
    generator = torch.Generator().manual_seed(0)
    edges = torch.tensor([0, 1, 2**31 - 1, 2**31, 2**31 + 1, 2**32 - 2, 2**32 - 1])
    h = torch.cat([edges, torch.randint(0, 2**32, (500_000,), generator=generator)])
    u = (h.double() + 0.5) / 2**32
    expected = torch.where(h < 2**31, -torch.log1p(-u), -((2**32 - h.double() - 0.5) / 2**32).log())
    result = exponential(h)
    assert result.dtype == torch.float32
    assert ((result.double() - expected).abs() <= expected * 3.5 * 2**-24).all()
    noise = log_exponential(h)
    assert ((noise.double() - expected.log()).abs() <= 1e-6).all()
    assert noise.min() > -22.9
    assert noise.max() < 3.14


def test_exponential_rounds_its_integers_to_nearest() -> None:
    """h = 2³¹ − 1 and 2³¹ lie half a step from ½ on either side and both round to it."""
    result = exponential(torch.tensor([2**31 - 1, 2**31]))
    assert result[0] == result[1]
    assert float(result[0]) == pytest.approx(math.log(2), abs=1e-7)


def test_words_do_not_depend_on_their_place() -> None:
    h = torch.randint(0, 2**32, (70_001,), generator=torch.Generator().manual_seed(1))
    expected = log_exponential(h)
    torch.set_num_threads(2)
    assert same_bits(log_exponential(h), expected)
    for start, length in ((1, 1), (3, 77), (69_999, 2)):
        assert same_bits(log_exponential(h[start : start + length]), expected[start : start + length])
