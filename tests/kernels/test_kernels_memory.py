"""Writing KV, copying blocks, and the token table."""

import pytest
import torch
from kernel_oracles import same_bits

from kernels.ops import KVLayout, Ops, load


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


def test_copy_blocks_reads_before_it_writes(ops: Ops) -> None:
    cache = torch.arange(5, dtype=torch.uint8)[:, None].repeat(1, 40)
    ops.copy_blocks(cache, torch.tensor([0, 1, 2, 1]), torch.tensor([1, 2, 0, 4]))
    assert cache[:, 0].tolist() == [2, 0, 1, 3, 1]
    assert (cache == cache[:, :1]).all()


def test_tokens_are_stored_and_gathered(ops: Ops) -> None:
    tokens = torch.zeros(3, 5, dtype=torch.int32)
    slots, positions = torch.tensor([0, 2, 2, 1, 1]), torch.tensor([4, 0, 5, 1, -1])
    ops.store_tokens(tokens, slots, positions, torch.tensor([7, 8, 9, 10, 11]))
    expected = torch.zeros(3, 5, dtype=torch.int32)
    expected[0, 4], expected[2, 0], expected[1, 1] = 7, 8, 10
    assert torch.equal(tokens, expected)
    gathered = ops.gather_tokens(tokens, torch.tensor([1, 0]), torch.tensor([1, 4]))
    assert same_bits(gathered, torch.tensor([10, 7]))
