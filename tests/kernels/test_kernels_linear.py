"""Linear layers: accuracy, and rows that do not depend on anything but themselves."""

import pytest
import torch
from kernel_oracles import same_bits
from torch import Tensor

from kernels.ops import Ops

SHAPES = [
    (576, 576, 1),
    (576, 576, 3),
    (576, 3072, 1),
    (1536, 576, 3),
    (64, 96, 2),
    (64, 96, 4),
    (128, 512, 8),
    (33, 7, 1),
    (33, 7, 3),
    (1, 1, 1),
    (17, 130, 1),
]
DTYPES = [torch.float32, torch.bfloat16]


def random_case(num_inputs: int, num_outputs: int, num_rows: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(num_inputs * 1000 + num_outputs)
    x = torch.randn(num_rows, num_inputs, generator=generator)
    return x.to(dtype), torch.randn(num_outputs, num_inputs, generator=generator).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("num_inputs", "num_outputs", "segments"), SHAPES)
def test_linear_matches_float64(ops: Ops, num_inputs: int, num_outputs: int, segments: int, dtype: torch.dtype) -> None:
    x, weight = random_case(num_inputs, num_outputs, 21, dtype)
    bias = torch.linspace(-1, 1, num_outputs)
    packed = ops.pack_linear(weight, segments)
    result = ops.linear(x, packed, bias)
    expected = x.double() @ weight.double().t() + bias.double()
    magnitude = x.double().abs() @ weight.double().abs().t() + bias.double().abs()
    assert result.dtype == torch.float32
    assert result.is_contiguous()
    assert (packed.num_inputs, packed.num_outputs) == (num_inputs, num_outputs)
    assert ((result - expected).abs() <= magnitude * 2**-24 * (2 + num_inputs**0.5)).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("num_inputs", "num_outputs", "segments"), SHAPES)
def test_linear_rows_depend_on_themselves_alone(
    ops: Ops, num_inputs: int, num_outputs: int, segments: int, dtype: torch.dtype
) -> None:
    x, weight = random_case(num_inputs, num_outputs, 40, dtype)
    packed = ops.pack_linear(weight, segments)
    torch.set_num_threads(1)
    expected = torch.cat([ops.linear(x[row : row + 1], packed) for row in range(40)])
    generator = torch.Generator().manual_seed(1)
    for threads, counts in ((1, (2, 16, 17, 40)), (2, (1, 16, 37))):
        torch.set_num_threads(threads)
        for num_rows in counts:
            chosen = torch.randperm(40, generator=generator)[:num_rows]
            assert same_bits(ops.linear(x[chosen], packed), expected[chosen])
        strided = torch.cat([x, x], dim=1)[:, 1 : num_inputs + 1]
        assert same_bits(ops.linear(strided, packed), ops.linear(strided.clone(), packed))


def test_large_output_rows_depend_on_themselves_alone(ops: Ops) -> None:
    x, weight = random_case(576, 49152, 18, torch.bfloat16)
    packed = ops.pack_linear(weight)
    torch.set_num_threads(1)
    expected = ops.linear(x, packed)
    torch.set_num_threads(2)
    for row in (0, 5, 15, 16):
        assert same_bits(ops.linear(x[row : row + 1], packed), expected[row : row + 1])
    assert same_bits(ops.linear(x.flip(0), packed), expected.flip(0))


def test_nan_rows_leave_their_neighbours_alone(ops: Ops) -> None:
    x, weight = random_case(48, 33, 9, torch.float32)
    packed = ops.pack_linear(weight, 3)
    expected = ops.linear(x, packed)
    x[4] = float("nan")
    x[6] = float("inf")
    result = ops.linear(x, packed)
    kept = torch.tensor([0, 1, 2, 3, 5, 7, 8])
    assert same_bits(result[kept], expected[kept])
    assert result[4].isnan().all()


@pytest.mark.parametrize("segments", [2, 3, 4, 6, 8])
def test_segments_are_summed_alone_and_added_in_a_tree(ops: Ops, segments: int) -> None:
    x, weight = random_case(24 * 16, 40, 5, torch.bfloat16)
    parts = [
        ops.linear(rows.contiguous(), ops.pack_linear(columns.contiguous()))
        for rows, columns in zip(x.chunk(segments, 1), weight.chunk(segments, 1), strict=True)
    ]
    while len(parts) > 1:
        pairs = [parts[i] + parts[i + 1] for i in range(0, len(parts) - 1, 2)]
        parts = pairs + parts[2 * len(pairs) :]
    assert same_bits(ops.linear(x, ops.pack_linear(weight, segments)), parts[0])


def test_no_rows(ops: Ops) -> None:
    assert ops.linear(torch.zeros(0, 32), ops.pack_linear(torch.ones(5, 32))).shape == (0, 5)


def test_wrong_arguments_are_refused(ops: Ops) -> None:
    weight = torch.ones(4, 32)
    with pytest.raises(ValueError, match="segments"):
        ops.pack_linear(weight, 3)
    with pytest.raises(ValueError, match="float16"):
        ops.pack_linear(weight.half())
    with pytest.raises(TypeError, match="bfloat16"):
        ops.linear(torch.ones(1, 32, dtype=torch.bfloat16), ops.pack_linear(weight))
