"""int8, int4 and fp8 linears: what quantization leaves, exactly; near to float64; with integers the same bits on every
backend; the same in any batch."""

from typing import get_args

import pytest
import torch
from kernel_cases import is_interpreted
from kernel_oracles import same_bits
from torch import Tensor

from kernels.ops import Ops, PackedLinear, Quantization, load

SHAPES = [(64, 64, 1), (40, 192, 3), (33, 100, 1), (96, 576, 3), (7, 30, 1)]
QUANTIZATIONS: tuple[Quantization, ...] = get_args(Quantization)
GROUP_SIZES = {"int8": 64, "int4": 32, "fp8": 128}


@pytest.fixture(params=QUANTIZATIONS)
def quantization(request: pytest.FixtureRequest, ops: Ops) -> Quantization:
    """Each that the backend has."""
    name: Quantization = request.param
    skip_unless_known(ops, name)
    return name


def skip_unless_known(ops: Ops, quantization: Quantization) -> None:
    if quantization not in ops.quantizations:
        pytest.skip(f"no {quantization} linears")


def quantized(rows: Tensor, quantization: Quantization) -> Tensor:
    """What is left of each row, float64."""
    most = rows.abs().amax(dim=1, keepdim=True)
    largest = torch.full_like(most, 448 if quantization == "fp8" else 127)  # a number's quotient would be a product
    scaled = rows * largest.div(most).where(most > 0, 0.0)
    values = to_e4m3(scaled) if quantization == "fp8" else scaled.round().double()
    return values * (most / largest).double()


def to_e4m3(x: Tensor) -> Tensor:
    """float32 below 464 → float64, to the nearest of 8 steps of each power of two from 2⁻⁶ on, of 2⁻⁹ below; ties to
    even."""
    _, exponent = torch.frexp(x)
    step = torch.ldexp(torch.ones_like(x), (exponent - 1).clamp(min=-6) - 3).double()
    return (x.double() / step).round() * step


def in_groups(rows: Tensor, segments: int, size: int) -> list[Tensor]:
    """Groups that do not cross a segment."""
    return [group for part in rows.chunk(segments, dim=1) for group in torch.split(part, size, dim=1)]


def int4_weight(ops: Ops, packed: PackedLinear) -> Tensor:
    """[N, K] float64: what the weights have become, to float32's precision: each alone makes a result."""
    return ops.linear(torch.eye(packed.num_inputs), packed).T.double()


@pytest.mark.parametrize(("num_outputs", "num_inputs", "segments"), SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_is_the_product_of_what_quantization_leaves(
    ops: Ops, num_outputs: int, num_inputs: int, segments: int, dtype: torch.dtype, quantization: Quantization
) -> None:
    weight, bias = torch.randn(num_outputs, num_inputs).to(dtype), torch.randn(num_outputs)
    x = (torch.randn(19, num_inputs) * 3).to(dtype)
    x[3] = 0
    packed = ops.pack_linear(weight, segments, quantization=quantization)
    result = ops.linear(x, packed, bias)
    groups = in_groups(x.float(), segments, GROUP_SIZES[quantization])
    inputs = torch.cat([quantized(group, quantization) for group in groups], 1)
    left = int4_weight(ops, packed) if quantization == "int4" else quantized(weight.float(), quantization)
    expected = inputs @ left.T + bias.double()
    if quantization == "fp8" and ops.name == "triton":
        # Hopper's matrix unit keeps about 13 bits of what it adds up within a group.
        assert ((result - expected).abs() <= (inputs.abs() @ left.abs().T) * 2**-12 + 1e-5).all()
    else:
        torch.testing.assert_close(result.double(), expected, rtol=1e-5, atol=1e-4)
    assert same_bits(result[3], bias)


@pytest.mark.parametrize(("num_outputs", "num_inputs", "segments"), SHAPES)
def test_backends_agree_bit_for_bit(
    ops: Ops, num_outputs: int, num_inputs: int, segments: int, quantization: Quantization
) -> None:
    weight, x = torch.randn(num_outputs, num_inputs), torch.randn(5, num_inputs).to(torch.bfloat16)
    weight[1], weight[2], weight[4] = weight[1] * 1e-4, 0, weight[4].abs()
    weight[3, :32] *= 1e-5  # a group beside which others are large
    if quantization == "fp8":
        pytest.skip("sums of e4m3 products are rounded in the order of each backend")
    reference = load("reference")
    expected = reference.linear(x, reference.pack_linear(weight, segments, quantization=quantization))
    assert same_bits(ops.linear(x, ops.pack_linear(weight, segments, quantization=quantization)), expected)


def test_rows_depend_on_themselves_alone(ops: Ops, quantization: Quantization) -> None:
    packed = ops.pack_linear(torch.randn(96, 192), 3, quantization=quantization)
    x = torch.randn(70, 192).to(torch.bfloat16)
    together = ops.linear(x, packed)
    for row in (0, 33, 69) if is_interpreted(ops) else range(len(x)):
        assert same_bits(ops.linear(x[row : row + 1], packed), together[row : row + 1])
    order = torch.randperm(len(x))
    assert same_bits(ops.linear(x[order], packed), together[order])


@pytest.mark.parametrize("num_rows", [1, 5, 37])
def test_fused_as_their_parts(ops: Ops, num_rows: int, quantization: Quantization) -> None:
    weight, x = torch.randn(80, 96), torch.randn(num_rows, 96).to(torch.bfloat16)
    plain = ops.pack_linear(weight, quantization=quantization)
    gated = ops.pack_linear(weight, is_gated=True, quantization=quantization)
    residual = torch.randn(num_rows, 80)
    assert same_bits(ops.linear_add(x, plain, None, residual), ops.linear(x, plain) + residual)
    expected = ops.silu_and_mul(ops.linear(x, plain), torch.bfloat16)
    assert same_bits(ops.gated_linear(x, gated, None, torch.bfloat16), expected)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_weight_that_is_not_finite_spoils_its_output_alone(ops: Ops, quantization: Quantization, bad: float) -> None:
    weight, x = torch.randn(40, 96), torch.randn(3, 96)
    expected = ops.linear(x, ops.pack_linear(weight, 3, quantization=quantization))
    weight[17, 70] = bad
    result = ops.linear(x, ops.pack_linear(weight, 3, quantization=quantization))
    assert result[:, 17].isnan().all()
    others = torch.arange(40) != 17
    assert same_bits(result[:, others], expected[:, others])


@pytest.mark.parametrize(("num_outputs", "num_inputs", "segments"), SHAPES)
def test_int4_is_sixteen_levels_better_than_the_range_divided(
    ops: Ops, num_outputs: int, num_inputs: int, segments: int
) -> None:
    skip_unless_known(ops, "int4")
    weight = torch.randn(num_outputs, num_inputs)
    weight[2] = weight[2].abs() + 1
    left = int4_weight(ops, ops.pack_linear(weight, segments, quantization="int4"))
    pairs = zip(in_groups(weight.double(), segments, 32), in_groups(left, segments, 32), strict=True)
    for group, kept in pairs:
        lowest = group.amin(1, keepdim=True).clamp(max=0)
        step = (group.amax(1, keepdim=True).clamp(min=0) - lowest) / 15
        zero = (-lowest / step).round()
        plain = (((group / step).round() + zero).clamp(0, 15) - zero) * step
        assert (kept - group).square().sum() < (plain - group).square().sum()
        assert all(len(row.div(row.abs().max()).round(decimals=4).unique()) <= 16 for row in kept)


def test_int4_keeps_what_four_bits_can_say(ops: Ops) -> None:
    skip_unless_known(ops, "int4")
    weight = torch.randint(0, 16, (6, 64)).float() - torch.tensor([0, 3, 7, 8, 12, 15])[:, None]
    weight[:, ::32] = -torch.tensor([0.0, 3, 7, 8, 12, 15])[:, None]
    weight[:, 1::32] = weight[:, ::32] + 15
    left = int4_weight(ops, ops.pack_linear(weight * 0.25, quantization="int4"))
    torch.testing.assert_close(left, weight.double() * 0.25, rtol=1e-6, atol=1e-6)


def test_a_range_beyond_float32_is_no_number(ops: Ops) -> None:
    skip_unless_known(ops, "int4")
    weight = torch.zeros(2, 32)
    weight[0, :2] = torch.tensor([3e38, -3e38])  # finite, but their distance is not
    result = ops.linear(torch.ones(1, 32), ops.pack_linear(weight, quantization="int4"))
    assert result[0, 0].isnan()
    assert result[0, 1] == 0
