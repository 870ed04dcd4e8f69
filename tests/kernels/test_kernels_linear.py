"""Linear layers: accuracy, and rows that do not depend on anything but themselves."""

import numpy as np
import pytest
import torch
from kernel_cases import is_interpreted
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


def is_invariant(ops: Ops) -> bool:
    """Whether a row's bits are promised, whatever else there is. A library's are not, but it has no part in 40 rows."""
    return not ops.isa.endswith("-library")


def fewer(ops: Ops, num_outputs: int) -> int:
    """What the interpreter can do in short time, still in two tiles."""
    return min(num_outputs, 261) if is_interpreted(ops) else num_outputs


def random_case(num_inputs: int, num_outputs: int, num_rows: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(num_inputs * 1000 + num_outputs)
    x = torch.randn(num_rows, num_inputs, generator=generator)
    return x.to(dtype), torch.randn(num_outputs, num_inputs, generator=generator).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("num_inputs", "num_outputs", "segments"), SHAPES)
def test_linear_matches_float64(ops: Ops, num_inputs: int, num_outputs: int, segments: int, dtype: torch.dtype) -> None:
    num_outputs = fewer(ops, num_outputs)
    x, weight = random_case(num_inputs, num_outputs, 21, dtype)
    bias = torch.linspace(-1, 1, num_outputs)
    packed = ops.pack_linear(weight, segments)
    result = ops.linear(x, packed, bias)
    expected = x.double() @ weight.double().t() + bias.double()
    magnitude = x.double().abs() @ weight.double().abs().t() + bias.double().abs()
    assert result.dtype == torch.float32
    assert result.is_contiguous()
    assert (packed.num_inputs, packed.num_outputs) == (num_inputs, num_outputs)
    # A GPU's matrix unit cuts off what it should round.
    error = 2**-22 if ops.name == "triton" and dtype == torch.bfloat16 else 2**-24
    assert ((result - expected).abs() <= magnitude * error * (2 + num_inputs**0.5)).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("num_inputs", "num_outputs", "segments"), SHAPES)
def test_linear_rows_depend_on_themselves_alone(
    ops: Ops, num_inputs: int, num_outputs: int, segments: int, dtype: torch.dtype
) -> None:
    x, weight = random_case(num_inputs, fewer(ops, num_outputs), 40, dtype)
    packed = ops.pack_linear(weight, segments)
    torch.set_num_threads(1)
    alone = (0, 39) if is_interpreted(ops) else range(40)
    expected = ops.linear(x, packed)
    for row in alone:
        assert same_bits(ops.linear(x[row : row + 1], packed), expected[row : row + 1])
    generator = torch.Generator().manual_seed(1)
    on_one_thread, on_two_threads = ((17,), ()) if is_interpreted(ops) else ((2, 16, 17, 40), (1, 16, 37))
    for threads, counts in ((1, on_one_thread), (2, on_two_threads)):
        torch.set_num_threads(threads)
        for num_rows in counts:
            chosen = torch.randperm(40, generator=generator)[:num_rows]
            assert same_bits(ops.linear(x[chosen], packed), expected[chosen])
    strided = torch.cat([x, x], dim=1)[:3, 1 : num_inputs + 1]
    assert same_bits(ops.linear(strided, packed), ops.linear(strided.clone(), packed))


def test_large_output_rows_depend_on_themselves_alone(ops: Ops) -> None:
    x, weight = random_case(576, fewer(ops, 49152), 18, torch.bfloat16)
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
    with np.errstate(invalid="ignore"):  # the interpreter's arithmetic is numpy's
        result = ops.linear(x, packed)
    kept = torch.tensor([0, 1, 2, 3, 5, 7, 8])
    assert same_bits(result[kept], expected[kept])
    assert result[4].isnan().all()


@pytest.mark.parametrize("segments", [2, 3, 4, 6, 8])
def test_segments_are_summed_alone_and_added_in_a_tree(ops: Ops, segments: int) -> None:
    if not is_invariant(ops):
        pytest.skip("only batch-invariant linears keep segments apart")
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
