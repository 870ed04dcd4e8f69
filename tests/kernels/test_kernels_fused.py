"""Fused operations give bit for bit what their parts give one after the other (design 6)."""

import pytest
import torch
from kernel_cases import is_interpreted
from kernel_oracles import same_bits

from kernels.ops import Ops

DTYPES = [torch.float32, torch.bfloat16]
CACHED = [  # dtypes of the model and of its cache
    (torch.float32, torch.float32),
    (torch.float32, torch.int8),
    (torch.bfloat16, torch.bfloat16),
    (torch.bfloat16, torch.int8),
    (torch.bfloat16, torch.float8_e4m3fn),
]
NUM_INTERPRETED_ROWS = 3
ROWS = [1, 3, 16, 37]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_rows", ROWS)
@pytest.mark.parametrize("has_bias", [False, True])
def test_linear_add(ops: Ops, dtype: torch.dtype, num_rows: int, has_bias: bool) -> None:
    weight = ops.pack_linear(torch.randn(80, 96).to(dtype), 3)
    x, residual = torch.randn(num_rows, 96).to(dtype), torch.randn(num_rows, 80)
    bias = torch.randn(80) if has_bias else None
    before = residual.clone()
    assert same_bits(ops.linear_add(x, weight, bias, residual), ops.linear(x, weight, bias) + residual)
    assert same_bits(residual, before)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_rows", ROWS)
@pytest.mark.parametrize("size", [96, 40, 7])
@pytest.mark.parametrize("has_bias", [False, True])
def test_gated_linear(ops: Ops, dtype: torch.dtype, num_rows: int, size: int, has_bias: bool) -> None:
    weight = torch.randn(2 * size, 64).to(dtype)
    x, bias = (torch.randn(num_rows, 64) * 2).to(dtype), torch.randn(2 * size) if has_bias else None
    fused = ops.gated_linear(x, ops.pack_linear(weight, is_gated=True), bias, dtype)
    assert same_bits(fused, ops.silu_and_mul(ops.linear(x, ops.pack_linear(weight), bias), dtype))


@pytest.mark.parametrize(("dtype", "kv_dtype"), CACHED)
@pytest.mark.parametrize("num_rows", [1, 13])
@pytest.mark.parametrize(
    ("heads", "head_size", "rotated", "has_norms"),
    [((6, 2), 32, 32, False), ((6, 2), 32, 32, True), ((9, 3), 24, 16, True)],
)
def test_rotary_write_kv(
    ops: Ops,
    dtype: torch.dtype,
    kv_dtype: torch.dtype,
    num_rows: int,
    heads: tuple[int, int],
    head_size: int,
    rotated: int,
    has_norms: bool,
) -> None:
    if kv_dtype not in ops.kv_dtypes:
        pytest.skip(f"no cache in {kv_dtype}")
    if is_interpreted(ops):
        num_rows = min(num_rows, NUM_INTERPRETED_ROWS)
    num_heads, num_kv_heads = heads
    layout = ops.kv_layout(16, num_kv_heads, head_size, kv_dtype)
    num_blocks = 2
    qkv = torch.randn(num_rows, num_heads + 2 * num_kv_heads, head_size)
    q, k, v = torch.split(qkv, [num_heads, num_kv_heads, num_kv_heads], dim=1)
    cos_sin, positions = torch.randn(64, rotated), torch.randint(0, 64, (num_rows,))
    kv_slots = torch.randperm(num_blocks * 16)[:num_rows]
    norms = (torch.randn(head_size), torch.randn(head_size), 1e-6) if has_norms else None
    caches = [torch.full((num_blocks, layout.bytes_per_block), 0xA5, dtype=torch.uint8) for _ in range(2)]
    fused = ops.rotary_write_kv(q, k, v, norms, positions, cos_sin, caches[0], layout, kv_slots, dtype)
    if norms is not None:
        q = ops.rms_norm(q, norms[0], norms[2], torch.float32)
        k = ops.rms_norm(k, norms[1], norms[2], torch.float32)
    ops.write_kv(ops.rotary(k, positions, cos_sin, dtype), v.to(dtype), caches[1], layout, kv_slots)
    assert same_bits(fused, ops.rotary(q, positions, cos_sin, dtype))
    assert torch.equal(caches[0], caches[1])
    assert not (caches[0] == 0xA5).all()
