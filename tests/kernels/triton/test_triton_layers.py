"""The Triton backend's small layers: the reference's bits where the arithmetic is elementwise, norms in any order."""

import kernel_oracles as oracle
import pytest
import torch
from kernel_oracles import same_bits

from kernels.ops import Ops, load

pytestmark = pytest.mark.parametrize("ops", ["triton"], indirect=True)

DTYPES = [torch.float32, torch.bfloat16]


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dtype", DTYPES)
def test_elementwise_layers_have_the_bits_of_the_reference(ops: Ops, dtype: torch.dtype) -> None:
    reference = load("reference")
    gate_up = random(3, 2 * 1500) * 20
    gate_up[0, :5] = torch.tensor([0.0, -0.0, 1e-20, -100.0, 100.0])
    assert same_bits(ops.silu_and_mul(gate_up, dtype), reference.silu_and_mul(gate_up, dtype))
    table, ids = random(9, 1500).to(dtype), torch.tensor([8, 0, 8])
    assert same_bits(ops.embed(ids, table), reference.embed(ids, table))
    positions, heads = torch.tensor([5, 0]), random(2, 20, 80)  # more heads than a program takes
    for rotated in (80, 36):
        cos_sin = random(6, rotated, seed=1)
        expected = reference.rotary(heads, positions, cos_sin, dtype)
        assert same_bits(ops.rotary(heads, positions, cos_sin, dtype), expected)


def test_results_are_rounded_once_to_the_nearest(ops: Ops) -> None:
    """Also of what lies in the middle of two, and what becomes infinite."""
    bits = torch.arange(-(2**31), 2**31, 0x00FE8000, dtype=torch.int64)[:258].to(torch.int32)
    x = torch.cat([bits.view(torch.float32), torch.tensor([3.4e38, -3.4e38, 1e-40, -1e-45, -0.0])])
    x = x.where(x.isfinite(), 0.0).view(1, 1, -1)
    position, nowhere = torch.zeros(1, dtype=torch.int64), torch.zeros(1, 2)
    nowhere[:, 0] = 1.0
    result = ops.rotary(x, position, nowhere, torch.bfloat16)
    assert same_bits(result[..., 2:], x[..., 2:].to(torch.bfloat16))


@pytest.mark.parametrize("size", [24, 576, 4096])
def test_norms_do_not_depend_on_the_order_of_a_sum(ops: Ops, size: int) -> None:
    """So they do not on how a compiler lays out a row, which alignment may change: sums of float32 would."""
    x, weight = random(5, size), random(size, seed=1)
    x[0, 3], x[1] = 3e3, x[1].exp()
    order = torch.randperm(size, generator=torch.Generator().manual_seed(2))
    result = ops.rms_norm(x, weight, 1e-5, torch.float32)
    assert same_bits(ops.rms_norm(x[:, order], weight[order], 1e-5, torch.float32), result[:, order])


@pytest.mark.parametrize("size", [64, 8192])
def test_norms_of_any_magnitude_match_float64(ops: Ops, size: int) -> None:
    """Among them rows with an outlier, rows of outliers alone, and numbers whose squares float32 cannot say."""
    x, weight = random(9, size), random(size, seed=1)
    factors = torch.tensor([1e-30, 1e-18, 1e-8, 1e-3, 1.0, 1e3, 1e9, 1e18, 1.0])
    x *= factors[:, None]
    x[3, 1], x[8] = 1e3, x[8].sign() * 1e-20
    x[8, 5] = 7e-3
    result = ops.rms_norm(x, weight, 1e-12, torch.float32)
    torch.testing.assert_close(result.double(), oracle.rms_norm(x, weight, 1e-12), rtol=1e-6, atol=1e-30)


def test_a_norm_that_sees_nan_or_infinity_is_nan(ops: Ops) -> None:
    x = random(3, 40)
    x[0, 3], x[1, 39] = torch.nan, -torch.inf
    result = ops.rms_norm(x, torch.ones(40), 1e-5, torch.bfloat16)
    assert result.isnan().all(-1).tolist() == [True, True, False]
