"""The Triton backend's KV blocks: where keys, values and scales lie, and what they are."""

import kernel_oracles as oracle
import pytest
import torch
from torch import Tensor

from kernels.ops import KVLayout, Ops

pytestmark = pytest.mark.parametrize("ops", ["triton"], indirect=True)

KV_DTYPES = [torch.float32, torch.bfloat16, torch.int8, torch.float8_e4m3fn]


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def unpack(cache: Tensor, layout: KVLayout) -> tuple[Tensor, Tensor]:
    """K and V of every token in a cache, [B · block_size, G, D] float64: the layout from its description."""
    heads = (layout.block_size, layout.num_kv_heads)
    num_bytes = heads[0] * heads[1] * layout.head_size * layout.dtype.itemsize
    parts = []
    for part in (0, 1):
        values = cache[:, part * num_bytes :][:, :num_bytes].contiguous().view(layout.dtype).double()
        values = values.view(len(cache), *heads, layout.head_size)
        if layout.is_scaled:
            scales = cache[:, 2 * num_bytes :].contiguous().view(torch.float32).view(len(cache), 2, *heads)
            values = values * scales[:, part, ..., None].double()
        parts.append(values.flatten(0, 1))
    return parts[0], parts[1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
@pytest.mark.parametrize(("block_size", "num_kv_heads", "head_size"), [(16, 2, 64), (64, 3, 6), (32, 20, 80)])
def test_write_kv_rounds_and_places(
    ops: Ops, block_size: int, num_kv_heads: int, head_size: int, kv_dtype: torch.dtype, dtype: torch.dtype
) -> None:
    layout = ops.kv_layout(block_size, num_kv_heads, head_size, kv_dtype)
    slots = torch.tensor([0, 3 * block_size + 1, block_size + 2, 2 * block_size - 1, 7])
    k, v = (random(5, num_kv_heads, head_size, seed=seed).to(dtype) for seed in (0, 1))
    k[4, 1], v[0, 0] = 0.0, v[0, 0].sign() * 1e-36
    caches = [torch.full((4, layout.bytes_per_block), byte, dtype=torch.uint8) for byte in (0, 0xA5, 0x5A)]
    for cache in caches:
        ops.write_kv(k, v, cache, layout, slots)
    for written, rows in zip(unpack(caches[0], layout), (k, v), strict=True):
        expected = torch.zeros(4 * block_size, num_kv_heads, head_size, dtype=torch.float64)
        expected[slots] = oracle.as_cached(rows.float(), kv_dtype)
        if layout.is_scaled:
            expected[expected.abs() < 1e-35] = 0.0  # of heads too small to divide by
        assert torch.equal(written, expected)
    num_written = 2 * 5 * num_kv_heads * layout.bytes_per_head
    assert int((caches[1] == caches[2]).sum()) == num_written, "nothing but these tokens changes"


def test_fp8_rounds_to_the_nearest_number(ops: Ops) -> None:
    """All of them, and what lies in the middle of two: of these the even one."""
    numbers = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    middles = (numbers[1:] + numbers[:-1]) / 2
    largest = numbers[-1:]  # in each head, whose scale is 1 then
    parts = [numbers[1:], middles, -middles, middles * 1.0001, middles * 0.9999]
    heads = torch.stack([torch.cat([part, largest]) for part in parts]).unsqueeze(0)
    layout = ops.kv_layout(16, len(parts), heads.shape[-1], torch.float8_e4m3fn)
    cache = torch.zeros(1, layout.bytes_per_block, dtype=torch.uint8)
    ops.write_kv(heads, heads, cache, layout, torch.zeros(1, dtype=torch.int64))
    codes = cache[0, : heads.numel()]
    assert torch.equal(codes, oracle.nearest_fp8(heads.flatten()).view(torch.uint8))


@pytest.mark.parametrize("kv_dtype", [torch.int8, torch.float8_e4m3fn])
def test_a_head_that_is_not_finite_has_no_scale(ops: Ops, kv_dtype: torch.dtype) -> None:
    layout = ops.kv_layout(16, 1, 8, kv_dtype)
    k, v = random(2, 1, 8), random(2, 1, 8, seed=1)
    k[0, 0, 3], v[1, 0, 0] = torch.inf, torch.nan
    cache = torch.zeros(1, layout.bytes_per_block, dtype=torch.uint8)
    ops.write_kv(k, v, cache, layout, torch.arange(2))
    written_k, written_v = unpack(cache, layout)
    assert written_k[:2].isnan().all(-1).tolist() == [[True], [False]]
    assert written_v[:2].isnan().all(-1).tolist() == [[False], [True]]


def test_keys_and_values_of_different_strides_and_dtypes(ops: Ops) -> None:
    layout = ops.kv_layout(16, 2, 8, torch.bfloat16)
    fused, other = random(3, 7, 8), random(2, 3, 8, seed=1).transpose(0, 1).to(torch.bfloat16)
    k = fused[:, 4:6]
    cache = torch.zeros(1, layout.bytes_per_block, dtype=torch.uint8)
    ops.write_kv(k, other, cache, layout, torch.tensor([2, 9, 4]))
    written_k, written_v = unpack(cache, layout)
    assert torch.equal(written_k[[2, 9, 4]], k.to(torch.bfloat16).double())
    assert torch.equal(written_v[[2, 9, 4]], other.double())


@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_parts_of_a_block_are_aligned(ops: Ops, kv_dtype: torch.dtype) -> None:
    """For loads of 16 bytes, whatever the model's shape. Scales, if there are any, fill the rest of a block."""
    from kernels.triton.kv import scales_start  # not before the fixture has chosen the interpreter

    for num_kv_heads, head_size in ((3, 64), (8, 128), (1, 80)):
        layout = ops.kv_layout(16, num_kv_heads, head_size, kv_dtype)
        assert layout.layout_id.startswith("kv-scales-last-")
        assert layout.bytes_per_block % 16 == 0
        scale_bytes = 2 * 16 * num_kv_heads * 4
        assert scales_start(layout) * 4 == (layout.bytes_per_block - scale_bytes if layout.is_scaled else 0)
        assert scales_start(layout) % 4 == 0
