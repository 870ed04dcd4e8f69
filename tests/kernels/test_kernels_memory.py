"""Writing KV, copying blocks, and the token table."""

import kernel_oracles as oracle
import pytest
import torch
from kernel_oracles import same_bits

from kernels.ops import AttentionBatch, KVLayout, Ops, load

KV_DTYPES = [torch.float32, torch.bfloat16, torch.int8, torch.float8_e4m3fn]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("block_size", [16, 64])
def test_the_reference_layout_is_plain(block_size: int, dtype: torch.dtype) -> None:
    """Where bytes lie inside a block is each backend's own; that attention finds them is tested for all."""
    ops = load("reference")
    layout = KVLayout(block_size, num_kv_heads=2, head_size=6, dtype=dtype)
    cache = torch.randint(0, 256, (4, layout.bytes_per_block), dtype=torch.uint8)
    before = cache.clone()
    k, v = torch.randn(5, 2, 6), torch.randn(5, 2, 6)
    slots = torch.tensor([0, 3 * block_size + 1, block_size, 2 * block_size - 1, 7])
    ops.write_kv(k, v, cache, layout, slots)
    expected = before.view(dtype).view(4, 2, block_size, 2, 6)
    for row, slot in enumerate(slots.tolist()):
        block, offset = divmod(slot, block_size)
        expected[block, 0, offset] = k[row].to(dtype)
        expected[block, 1, offset] = v[row].to(dtype)
    assert torch.equal(cache, before)


@pytest.fixture(params=KV_DTYPES, ids=str)
def kv_dtype(request: pytest.FixtureRequest, ops: Ops) -> torch.dtype:
    dtype: torch.dtype = request.param
    if dtype not in ops.kv_dtypes:
        pytest.skip(f"no cache in {dtype}")
    return dtype


def test_caches_of_other_dtypes_are_refused(ops: Ops) -> None:
    for dtype in {torch.float16, torch.int16, *KV_DTYPES} - ops.kv_dtypes:
        with pytest.raises((ValueError, TypeError)):
            ops.kv_layout(16, 2, 8, dtype)


def test_a_token_gets_back_its_value_as_the_cache_keeps_it(ops: Ops, kv_dtype: torch.dtype) -> None:
    """What attends to one token alone gives it the weight 1. Among the heads: zeros, small ones, an outlier."""
    layout = ops.kv_layout(16, 2, 16, kv_dtype)
    k, v = torch.randn(7, 2, 16), torch.randn(7, 2, 16)
    v[1], v[2], v[3, 1, 5], v[4] = 0.0, v[2] * 1e-3, 1e4, v[4].round()
    cache = torch.full((7, layout.bytes_per_block), 255, dtype=torch.uint8)
    slots = torch.arange(7) * 16
    ops.write_kv(k, v, cache, layout, slots)
    batch = AttentionBatch(
        query_start=torch.arange(8, dtype=torch.int32),
        block_tables=torch.arange(7, dtype=torch.int32).unsqueeze(1),
        positions=torch.zeros(7, dtype=torch.int64),
        kv_slots=slots,
    )
    result = ops.paged_attention(k, cache, layout, ops.plan_attention(batch), 0.25, None, torch.float32)
    expected = oracle.as_cached(v, kv_dtype)
    torch.testing.assert_close(result.double(), expected, rtol=1e-6, atol=1e-9)
    assert not result[1].any()


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_head_that_is_not_finite_spoils_who_sees_it(ops: Ops, kv_dtype: torch.dtype, bad: float) -> None:
    layout = ops.kv_layout(16, 2, 16, kv_dtype)
    k, v = torch.randn(2, 2, 16), torch.randn(2, 2, 16)
    v[1, 0, 3] = bad
    cache = torch.zeros(1, layout.bytes_per_block, dtype=torch.uint8)
    ops.write_kv(k, v, cache, layout, torch.arange(2))
    batch = AttentionBatch(
        query_start=torch.tensor([0, 2], dtype=torch.int32),
        block_tables=torch.zeros(1, 1, dtype=torch.int32),
        positions=torch.arange(2),
        kv_slots=torch.arange(2),
    )
    result = ops.paged_attention(k, cache, layout, ops.plan_attention(batch), 0.25, None, torch.float32)
    assert result[0].isfinite().all()
    assert result[1, 1].isfinite().all()
    assert not result[1, 0].isfinite().all()
    if layout.is_scaled:
        assert not result[1, 0].isfinite().any()


def test_copy_blocks_reads_before_it_writes(ops: Ops) -> None:
    cache = torch.arange(5, dtype=torch.uint8)[:, None].repeat(1, 40)
    ops.copy_blocks(cache, torch.tensor([0, 1, 2, 1]), torch.tensor([1, 2, 0, 4]))
    assert cache[:, 0].tolist() == [2, 0, 1, 3, 1]
    assert (cache == cache[:, :1]).all()


@pytest.mark.parametrize("num_bytes", [7, 36, 4100])
def test_copied_blocks_are_whole(ops: Ops, num_bytes: int) -> None:
    cache = torch.randint(0, 256, (6, num_bytes), dtype=torch.uint8)
    expected = cache.clone()
    expected[[5, 0]] = cache[[2, 5]]
    ops.copy_blocks(cache, torch.tensor([2, 5]), torch.tensor([5, 0]))
    assert torch.equal(cache, expected)
    ops.copy_blocks(cache, torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64))
    assert torch.equal(cache, expected)


def test_tokens_are_stored_and_gathered(ops: Ops) -> None:
    tokens = torch.zeros(3, 5, dtype=torch.int32)
    slots, positions = torch.tensor([0, 2, 2, 1, 1]), torch.tensor([4, 0, 5, 1, -1])
    ops.store_tokens(tokens, slots, positions, torch.tensor([7, 8, 9, 10, 11]))
    expected = torch.zeros(3, 5, dtype=torch.int32)
    expected[0, 4], expected[2, 0], expected[1, 1] = 7, 8, 10
    assert torch.equal(tokens, expected)
    gathered = ops.gather_tokens(tokens, torch.tensor([1, 0]), torch.tensor([1, 4]))
    assert same_bits(gathered, torch.tensor([10, 7]))


def test_many_tokens_are_stored_and_gathered(ops: Ops) -> None:
    """More than a program of any backend takes; a table that is part of a wider one."""
    wide = torch.zeros(700, 9, dtype=torch.int32)
    tokens, slots, positions = wide[:, 2:7], torch.randperm(700), torch.randint(-1, 6, (700,))
    ids = torch.randint(0, 2**31 - 1, (700,))
    is_inside = (positions >= 0) & (positions < 5)
    ops.store_tokens(tokens, slots, positions, ids)
    assert int((wide != 0).sum()) == int(is_inside.sum())
    slots, positions, ids = slots[is_inside], positions[is_inside], ids[is_inside]
    assert same_bits(ops.gather_tokens(tokens, slots, positions), ids)
