"""Linear layers of the Triton backend: both ways to add segments, the library's part, tiles, what packing keeps."""

import pytest
import torch
from kernel_oracles import same_bits
from torch import Tensor

from kernels.ops import Quantization
from kernels.triton import create_interpreted, linear, linear_packing
from kernels.triton.launch import collect
from kernels.triton.target import Target


@pytest.mark.parametrize("segments", [2, 3, 5, 6, 7, 8])
@pytest.mark.parametrize("quantization", [None, "int8"])
def test_segments_are_added_alike_in_one_program_and_in_many(segments: int, quantization: Quantization | None) -> None:
    ops = create_interpreted(batch_invariant=True)
    packed = ops.pack_linear(torch.randn(30, 16 * segments), segments, quantization=quantization)
    gated = ops.pack_linear(torch.randn(30, 16 * segments), segments, is_gated=True, quantization=quantization)
    x, bias, residual = torch.randn(47, 16 * segments), torch.randn(30), torch.randn(47, 30)
    many, few = ops.linear_add(x, packed, bias, residual), slice(3, 9)
    assert same_bits(ops.linear_add(x[few], packed, bias, residual[few]), many[few])
    many = ops.gated_linear(x, gated, bias, torch.bfloat16)
    assert same_bits(ops.gated_linear(x[few], gated, bias, torch.bfloat16), many[few])


def test_more_rows_than_wait_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ops = create_interpreted(batch_invariant=True)
    packed = ops.pack_linear(torch.randn(20, 48), 3)
    x, residual = torch.randn(90, 48), torch.randn(90, 20)
    expected = ops.linear_add(x, packed, None, residual)
    monkeypatch.setattr(linear, "MOST_SEGMENTED_ROWS", 40)
    assert same_bits(ops.linear_add(x, packed, None, residual), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_library_and_what_comes_after_it(dtype: torch.dtype) -> None:
    ops = create_interpreted()
    weight, bias = torch.randn(34, 70).to(dtype), torch.randn(34)
    packed, gated = ops.pack_linear(weight), ops.pack_linear(weight, is_gated=True)
    x, residual = torch.randn(50, 70).to(dtype), torch.randn(50, 34)
    expected = x.double() @ weight.double().t() + bias.double()
    result = ops.linear(x, packed, bias)
    torch.testing.assert_close(result.double(), expected, rtol=1e-4, atol=1e-4)
    assert same_bits(ops.linear_add(x, packed, bias, residual), result + residual)
    assert same_bits(ops.gated_linear(x, gated, bias, dtype), ops.silu_and_mul(result, dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_weight_is_kept_where_it_lies(dtype: torch.dtype) -> None:
    weight = torch.randn(6, 10).to(dtype)
    before = weight.clone()
    assert linear.pack_linear(weight, 2, is_gated=True, quantization=None).data.data_ptr() == weight.data_ptr()
    for quantization in ("int8", "fp8"):
        linear.pack_linear(weight, 2, is_gated=False, quantization=quantization)
    assert torch.equal(weight, before)


def test_packing_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.randn(11, 20)
    whole = linear.pack_linear(weight, 2, is_gated=False, quantization="int8")
    monkeypatch.setattr(linear_packing, "CHUNK_NUMBERS", 60)
    parts = linear.pack_linear(weight, 2, is_gated=False, quantization="int8")
    assert torch.equal(parts.data, whole.data)
    assert parts.scales is not None
    assert whole.scales is not None
    assert same_bits(parts.scales, whole.scales)


def launched(capability: int, *, batch_invariant: bool, num_rows: int, is_gated: bool = False) -> list[dict[str, int]]:
    """Constants of what is launched for 4096 outputs and inputs in 8 segments."""
    target = Target("GPU", capability, 132, batch_invariant)
    weight: Tensor = torch.empty(4096, 4096, dtype=torch.bfloat16, device="meta")
    packed = linear.pack_linear(weight, 8, is_gated=is_gated, quantization=None)
    x = torch.empty(num_rows, 4096, dtype=torch.bfloat16, device="meta")
    with collect() as launches:
        if is_gated:
            linear.gated_linear(target, x, packed, None, torch.bfloat16)
        else:
            linear.linear(target, x, packed, None)
    return [{**launch.constants, "num_warps": launch.num_warps} for launch in launches]


@pytest.mark.parametrize("capability", [80, 86, 90, 100, 120])
def test_invariant_tiles_are_for_one_matrix_instruction(capability: int) -> None:
    for num_rows in (1, 16, 17, 64, 65, 300, 5000):
        first, *_ = launched(capability, batch_invariant=True, num_rows=num_rows)
        assert first["BLOCK_OUTPUTS"] % 64 == 0
        assert first["num_warps"] % 4 == 0
        assert first["SEGMENTS"] == 8


def test_a_few_rows_take_one_launch() -> None:
    for num_rows in (1, 16, 64):
        (only,) = launched(90, batch_invariant=False, num_rows=num_rows)
        assert 4096 // only["BLOCK_OUTPUTS"] >= 120  # of 132 multiprocessors
    assert launched(90, batch_invariant=False, num_rows=65) == []  # the library's
    gated = launched(90, batch_invariant=False, num_rows=16, is_gated=True)
    assert [launch["BLOCK_OUTPUTS"] for launch in gated] == [32]  # as not gated: the sums have the same bits
