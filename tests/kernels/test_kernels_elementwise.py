"""The reference backend's exp, log and tree sum: errors in units in the last place, and no dependence on place."""

import math

import numpy as np
import pytest
import torch
from kernel_oracles import same_bits
from torch import Tensor

from kernels.reference.elementwise import exp_nonpositive, log, log_of_parts, tree_sum


def error_in_ulp(result: Tensor, expected: Tensor) -> float:
    """The largest error against float64, in units in the last place of the float32 result."""
    spacing = torch.from_numpy(np.spacing(expected.float().abs().numpy())).double()
    return float(((result.double() - expected).abs() / spacing).max())


def test_exp_is_accurate() -> None:
    generator = torch.Generator().manual_seed(0)
    for span in (87.0, 2.0, 1e-3):
        x = -torch.rand(500_000, generator=generator) * span
        assert error_in_ulp(exp_nonpositive(x), x.double().exp()) < 1.5


def test_exp_at_its_borders() -> None:
    x = torch.tensor([0.0, -0.0, -87.7, -1e30, -math.inf, math.nan])
    result = exp_nonpositive(x)
    assert result[:5].tolist() == [1.0, 1.0, 0.0, 0.0, 0.0]
    assert result[5].isnan()
    assert x[3] == -1e30, "the argument is not changed"


def test_log_is_accurate() -> None:
    generator = torch.Generator().manual_seed(0)
    everywhere = torch.randint(0x00800000, 0x7F7FFFFF, (500_000,), generator=generator, dtype=torch.int32)
    near_one = torch.rand(500_000, generator=generator) + 0.5
    for x in (everywhere.view(torch.float32), near_one, torch.arange(1, 50_000).float()):
        assert error_in_ulp(log(x), x.double().log()) < 3
    fraction = -torch.rand(500_000, generator=generator) / 2
    assert error_in_ulp(log_of_parts(torch.zeros(()), fraction), fraction.double().log1p()) < 3


def test_log_of_one_is_zero() -> None:
    assert log(torch.ones(3)).tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("function", [exp_nonpositive, log])
def test_lanes_do_not_depend_on_their_place(function: object) -> None:
    assert callable(function)
    x = torch.rand(100_003) * 20
    x = -x if function is exp_nonpositive else x + 0.01
    torch.set_num_threads(1)
    expected = function(x)
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for start, length in ((0, 100_003), (1, 7), (3, 33), (99_999, 1), (17, 70_001)):
            assert same_bits(function(x[start : start + length]), expected[start : start + length])
            strided = torch.stack([x, x], dim=1)[start : start + length, 1]
            assert same_bits(function(strided), expected[start : start + length])


@pytest.mark.parametrize("size", [1, 2, 3, 5, 64, 100, 576, 1025])
def test_tree_sum(size: int) -> None:
    x = torch.randn(6, size)
    expected = x.double().sum(-1, keepdim=True)
    result = tree_sum(x.clone())
    bound = x.double().abs().sum(-1, keepdim=True) * 2**-24 * max(1.0, math.log2(size) + 1)
    assert ((result - expected).abs() <= bound).all()
    assert all(same_bits(tree_sum(row.clone()), result[i]) for i, row in enumerate(x))
