"""Fused operations give bit for bit what their parts give one after the other (design 6)."""

import pytest
import torch
from kernel_oracles import same_bits

from kernels.ops import AttentionBatch, KVLayout, Ops

DTYPES = [torch.float32, torch.bfloat16]
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


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_rows", ROWS)
@pytest.mark.parametrize("has_norms", [False, True])
def test_rotary_write_kv(ops: Ops, dtype: torch.dtype, num_rows: int, has_norms: bool) -> None:
    layout = KVLayout(16, 2, 32, dtype)
    num_blocks = 4
    qkv = torch.randn(num_rows, 6 + 2 + 2, 32)
    q, k, v = torch.split(qkv, [6, 2, 2], dim=1)
    cos_sin, positions = torch.randn(64, 32), torch.randint(0, 64, (num_rows,))
    kv_slots = torch.randperm(num_blocks * 16)[:num_rows]
    norms = (torch.randn(32), torch.randn(32), 1e-6) if has_norms else None
    caches = [torch.zeros(num_blocks, layout.bytes_per_block, dtype=torch.uint8) for _ in range(2)]
    fused = ops.rotary_write_kv(q, k, v, norms, positions, cos_sin, caches[0], layout, kv_slots, dtype)
    if norms is not None:
        q = ops.rms_norm(q, norms[0], norms[2], torch.float32)
        k = ops.rms_norm(k, norms[1], norms[2], torch.float32)
    ops.write_kv(ops.rotary(k, positions, cos_sin, dtype), v.to(dtype), caches[1], layout, kv_slots)
    assert same_bits(fused, ops.rotary(q, positions, cos_sin, dtype))
    batch = AttentionBatch(
        query_start=torch.tensor([0, num_rows], dtype=torch.int32),
        block_tables=torch.arange(num_blocks, dtype=torch.int32).unsqueeze(0),
        positions=torch.arange(num_rows),
        kv_slots=kv_slots,
    )
    found = [ops.paged_attention(fused, cache, layout, batch, 0.2, None, torch.float32) for cache in caches]
    assert same_bits(found[0], found[1])
