"""Embedding, norms, activation, rotary positions: accuracy against float64, and bits that follow the row alone."""

from collections.abc import Callable

import kernel_oracles as oracle
import pytest
import torch
from kernel_cases import is_interpreted
from kernel_oracles import same_bits
from torch import Tensor

from kernels.ops import Ops

DTYPES = [torch.float32, torch.bfloat16]
NUM_ROWS = 201
NUM_INTERPRETED_ROWS = 7
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2**-8}


def assert_close(result: Tensor, expected: Tensor) -> None:
    tolerance = TOLERANCE[result.dtype]
    torch.testing.assert_close(result.double(), expected, rtol=tolerance, atol=tolerance * 1e-1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 7, 64, 576])
def test_norms_match_float64(ops: Ops, size: int, dtype: torch.dtype) -> None:
    x, weight = torch.randn(13, size) * 30, torch.randn(size)
    assert_close(ops.rms_norm(x, weight, 1e-5, dtype), oracle.rms_norm(x, weight, 1e-5))


@pytest.mark.parametrize("dtype", DTYPES)
def test_norm_of_heads_and_of_zeros(ops: Ops, dtype: torch.dtype) -> None:
    x, weight = torch.randn(5, 3, 24), torch.randn(24)
    result = ops.rms_norm(x, weight, 1e-6, dtype)
    assert result.dtype == dtype
    assert_close(result, oracle.rms_norm(x, weight, 1e-6))
    assert same_bits(ops.rms_norm(x[:, 1], weight, 1e-6, dtype), result[:, 1])
    assert not ops.rms_norm(torch.zeros(2, 24), weight, 1e-6, dtype).any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_silu_and_mul_matches_float64(ops: Ops, dtype: torch.dtype) -> None:
    gate = torch.cat([torch.linspace(-120, 120, 4001), torch.tensor([0.0, 1e-20, -1e-20])])
    gate_up = torch.cat([gate, torch.randn(len(gate)) * 3]).unsqueeze(0)
    expected = oracle.silu_and_mul(gate_up)
    result = ops.silu_and_mul(gate_up, dtype).double()
    tolerance = TOLERANCE[dtype]
    assert ((result - expected).abs() <= expected.abs() * tolerance + 1e-35).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rotated", [16, 8])
def test_rotary_matches_complex_rotation(ops: Ops, rotated: int, dtype: torch.dtype) -> None:
    angles = torch.arange(100)[:, None] * 10.0 ** -torch.linspace(0, 3, rotated // 2)
    cos_sin = torch.cat([angles.cos(), angles.sin()], dim=-1)
    x, positions = torch.randn(9, 3, 16), torch.randint(0, 100, (9,))
    result = ops.rotary(x, positions, cos_sin, dtype)
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(
        result.double(), oracle.rotary(x, positions, cos_sin), rtol=tolerance, atol=tolerance * 4
    )
    assert same_bits(result[..., rotated:], x[..., rotated:].to(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_embed(ops: Ops, dtype: torch.dtype) -> None:
    table = torch.randn(50, 12).to(dtype)
    chosen = torch.tensor([3, 3, 49, 0])
    assert same_bits(ops.embed(chosen, table), table[chosen].float())


def run_rows(ops: Ops, name: str, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    """The operation on chosen rows of one fixed input."""
    x, weight = torch.randn(NUM_ROWS, 198) * 4, torch.randn(198)
    positions, cos_sin = torch.randint(0, 64, (NUM_ROWS,)), torch.randn(64, 66)
    return {
        "rms_norm": lambda rows: ops.rms_norm(x[rows], weight, 1e-5, dtype),
        "silu_and_mul": lambda rows: ops.silu_and_mul(x[rows], dtype),
        "rotary": lambda rows: ops.rotary(x[rows].view(-1, 3, 66), positions[rows], cos_sin, dtype),
    }[name]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["rms_norm", "silu_and_mul", "rotary"])
def test_rows_depend_on_themselves_alone(ops: Ops, name: str, dtype: torch.dtype) -> None:
    run = run_rows(ops, name, dtype)
    num_rows = NUM_INTERPRETED_ROWS if is_interpreted(ops) else NUM_ROWS
    torch.set_num_threads(1)
    expected = torch.cat([run(torch.tensor([row])) for row in range(num_rows)])
    for threads in (1,) if is_interpreted(ops) else (1, 2):
        torch.set_num_threads(threads)
        for rows in (torch.arange(num_rows), torch.randperm(num_rows), torch.randperm(num_rows)[:17]):
            assert same_bits(run(rows), expected[rows])


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_may_be_slices_of_a_wider_buffer(ops: Ops, dtype: torch.dtype) -> None:
    fused, weight = torch.randn(5, 9, 24), torch.randn(24)
    heads, positions, cos_sin = fused[:, 2:6], torch.arange(5), torch.randn(8, 24)
    assert same_bits(ops.rms_norm(heads, weight, 1e-5, dtype), ops.rms_norm(heads.contiguous(), weight, 1e-5, dtype))
    assert same_bits(
        ops.rotary(heads, positions, cos_sin, dtype), ops.rotary(heads.contiguous(), positions, cos_sin, dtype)
    )
    rows = fused.view(5, 9 * 24)[:, 12:204]
    assert same_bits(ops.silu_and_mul(rows, dtype), ops.silu_and_mul(rows.contiguous(), dtype))


@pytest.mark.parametrize("name", ["rms_norm", "silu_and_mul", "rotary"])
def test_what_is_not_finite_stays_in_its_row(ops: Ops, name: str) -> None:
    """Heads, for the rotation."""
    x, weight = torch.randn(6, 4, 24), torch.randn(24)
    broken = x.clone()
    broken[2, 1, 3], broken[4, 0, 0] = torch.nan, torch.inf
    run: Callable[[Tensor], Tensor] = {
        "rms_norm": lambda x: ops.rms_norm(x, weight, 1e-5, torch.float32),
        "silu_and_mul": lambda x: ops.silu_and_mul(x.view(24, 24), torch.float32).view(6, 4, 12),
        "rotary": lambda x: ops.rotary(x, torch.arange(6), torch.ones(6, 24), torch.float32),
    }[name]
    expected, result = run(x), run(broken)
    is_clean = torch.ones(6, 4, dtype=torch.bool)
    is_clean[2, 1] = is_clean[4, 0] = False
    assert same_bits(result[is_clean], expected[is_clean])
    assert not result[2, 1].isfinite().all()
    assert not result[4, 0].isfinite().all()
