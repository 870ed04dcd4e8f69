"""int8 linears: what quantization leaves, exactly; near to float64; the same bits on every backend and in any batch."""

import pytest
import torch
from kernel_oracles import same_bits
from torch import Tensor

from kernels.ops import Ops, load

SHAPES = [(64, 64, 1), (40, 192, 3), (33, 100, 1), (96, 576, 3), (7, 30, 1)]


def quantized(rows: Tensor) -> Tensor:
    """What is left of each row, float64."""
    most = rows.abs().amax(dim=1, keepdim=True)
    inverse = torch.full_like(most, 127).div(most).where(most > 0, 0.0)  # 127 / most would be a rounded reciprocal's
    return (rows * inverse).round().double() * (most / 127).double()


def quantized_inputs(x: Tensor, segments: int) -> Tensor:
    """Groups of 64 that do not cross a segment."""
    groups = [group for part in x.chunk(segments, dim=1) for group in torch.split(part, 64, dim=1)]
    return torch.cat([quantized(group) for group in groups], dim=1)


@pytest.mark.parametrize(("num_outputs", "num_inputs", "segments"), SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_is_the_product_of_what_quantization_leaves(
    ops: Ops, num_outputs: int, num_inputs: int, segments: int, dtype: torch.dtype
) -> None:
    weight, bias = torch.randn(num_outputs, num_inputs).to(dtype), torch.randn(num_outputs)
    x = (torch.randn(19, num_inputs) * 3).to(dtype)
    x[3] = 0
    result = ops.linear(x, ops.pack_linear(weight, segments, quantization="int8"), bias)
    expected = quantized_inputs(x.float(), segments) @ quantized(weight.float()).T + bias.double()
    torch.testing.assert_close(result.double(), expected, rtol=1e-5, atol=1e-4)
    assert same_bits(result[3], bias)


@pytest.mark.parametrize(("num_outputs", "num_inputs", "segments"), SHAPES)
def test_backends_agree_bit_for_bit(ops: Ops, num_outputs: int, num_inputs: int, segments: int) -> None:
    weight, x = torch.randn(num_outputs, num_inputs), torch.randn(5, num_inputs).to(torch.bfloat16)
    reference = load("reference")
    expected = reference.linear(x, reference.pack_linear(weight, segments, quantization="int8"))
    assert same_bits(ops.linear(x, ops.pack_linear(weight, segments, quantization="int8")), expected)


def test_rows_depend_on_themselves_alone(ops: Ops) -> None:
    packed = ops.pack_linear(torch.randn(96, 192), 3, quantization="int8")
    x = torch.randn(70, 192).to(torch.bfloat16)
    alone = torch.cat([ops.linear(x[row : row + 1], packed) for row in range(len(x))])
    assert same_bits(ops.linear(x, packed), alone)
    order = torch.randperm(len(x))
    assert same_bits(ops.linear(x[order], packed), alone[order])


@pytest.mark.parametrize("num_rows", [1, 5, 37])
def test_fused_as_their_parts(ops: Ops, num_rows: int) -> None:
    weight, x = torch.randn(80, 96), torch.randn(num_rows, 96).to(torch.bfloat16)
    plain = ops.pack_linear(weight, quantization="int8")
    gated = ops.pack_linear(weight, is_gated=True, quantization="int8")
    residual = torch.randn(num_rows, 80)
    assert same_bits(ops.linear_add(x, plain, None, residual), ops.linear(x, plain) + residual)
    expected = ops.silu_and_mul(ops.linear(x, plain), torch.bfloat16)
    assert same_bits(ops.gated_linear(x, gated, None, torch.bfloat16), expected)
