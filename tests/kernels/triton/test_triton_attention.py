"""Attention on the GPU, as its interpreter runs it: what the planner finds, contexts in more parts than there is room
for, and what is launched."""

from dataclasses import replace

import pytest
import torch
from kernel_cases import random_sequence, run_attention
from kernel_oracles import same_bits

from kernels.ops import AttentionBatch, Ops
from kernels.triton import attention_plan, create_interpreted
from kernels.triton.attention_plan import AttentionWork


@pytest.fixture(scope="module")
def triton_ops() -> Ops:
    return create_interpreted(batch_invariant=True)


def plan(ops: Ops, rows: list[int], lengths: list[int], most_partials: int, spare: int = 1) -> AttentionWork:
    """Of sequences of ``rows`` rows, the last at position length − 1; ``spare`` rows belong to none."""
    positions = [torch.arange(length - count, length) for count, length in zip(rows, lengths, strict=True)]
    all_positions = torch.cat([*positions, torch.zeros(spare, dtype=torch.int64)])
    batch = AttentionBatch(
        query_start=torch.tensor([0, *rows]).cumsum(0).to(torch.int32),
        block_tables=torch.zeros(len(rows), 512, dtype=torch.int32),
        positions=all_positions,
        kv_slots=all_positions,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention_plan, "MOST_PARTIALS", most_partials)
        work = ops.plan_attention(batch).work
    assert isinstance(work, AttentionWork)
    return work


def test_the_plan_lists_parts_and_prefills(triton_ops: Ops) -> None:
    work = plan(triton_ops, [1, 40, 0, 8, 9, 1], [1024, 50, 7, 3000, 9, 1025], 2048)
    assert work.counts.tolist() == [1 + 3 + 2, 2048 // 10, 2, 49]
    assert work.items[:6].tolist() == [[0, 0], [3, 0], [3, 1], [3, 2], [5, 0], [5, 1]]
    assert work.decode_start.tolist() == [0, -1, -1, 1, -1, 9]
    assert work.prefill_sequences[:2].tolist() == [1, 4]
    assert work.prefill_start[:2].tolist() == [0, 40]


def test_contexts_without_room_are_in_fewer_parts(triton_ops: Ops) -> None:
    work = plan(triton_ops, [1, 1, 10], [5000, 1500, 10], 6)
    assert work.counts.tolist() == [3 + 2, 3, 1, 10]
    assert work.items[:5].tolist() == [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1]]


def test_a_step_of_as_many_sequences_as_rows_has_no_prefill(triton_ops: Ops) -> None:
    work = plan(triton_ops, [12] + [0] * 11, [12] + [1] * 11, 2048, spare=0)
    assert work.counts.tolist()[2:] == [0, 0]
    assert work.decode_start.tolist() == [0] + [-1] * 11


def test_more_sequences_than_a_vector_holds(triton_ops: Ops) -> None:
    rows = [(index * 7) % 3 for index in range(260)]
    work = plan(triton_ops, rows, [1 + count for count in rows], 2048)
    decodes = [sum(rows[:index]) if count else -1 for index, count in enumerate(rows)]
    assert work.decode_start.tolist() == decodes
    assert work.counts[0] == sum(count > 0 for count in rows)


@pytest.mark.parametrize("window", [None, 2500])
@pytest.mark.parametrize("most_partials", [1, 2, 3])
def test_parts_make_no_difference(triton_ops: Ops, window: int | None, most_partials: int) -> None:
    """A part takes several segments where there is no room for more parts: they are merged in order all the same."""
    sequence = random_sequence(1, 3500, 2, 1, 16, torch.bfloat16)
    expected = run_attention(triton_ops, [(sequence, 3499, 3500)], 64, window)[0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention_plan, "MOST_PARTIALS", most_partials)
        assert same_bits(run_attention(triton_ops, [(sequence, 3499, 3500)], 64, window)[0], expected)
    in_tiles = run_attention(triton_ops, [(sequence, 3488, 3500)], 64, window)[0]
    assert same_bits(in_tiles[-1:], expected)


def test_drafts_beside_a_prompt(triton_ops: Ops) -> None:
    """Sequences of a few rows decode, several tokens to a tile."""
    sequence, prompt = (random_sequence(index, 1040, 6, 2, 16, torch.bfloat16) for index in range(2))
    drafts, _ = run_attention(triton_ops, [(sequence, 1020, 1026), (prompt, 0, 10)], 16)
    for row in range(1020, 1026):
        assert same_bits(run_attention(triton_ops, [(sequence, row, row + 1)], 16)[0][0], drafts[row - 1020])


@pytest.mark.parametrize("num_rows", [3, 12])
def test_more_rows_than_sequences_expects(triton_ops: Ops, num_rows: int) -> None:
    """With as many sequences as rows all rows decode, though one sequence has them all."""
    sequence = random_sequence(4, 80, 6, 2, 16, torch.bfloat16)
    end = 70
    layout = triton_ops.kv_layout(16, 2, 16, torch.bfloat16)
    cache = torch.full((5, layout.bytes_per_block), 255, dtype=torch.uint8)
    triton_ops.write_kv(sequence.k[:end], sequence.v[:end], cache, layout, torch.arange(end))
    batch = AttentionBatch(
        query_start=torch.tensor([0] + [num_rows] * num_rows, dtype=torch.int32),
        block_tables=torch.arange(5, dtype=torch.int32).repeat(num_rows, 1),
        positions=torch.arange(end - num_rows, end),
        kv_slots=torch.arange(end - num_rows, end),
    )
    q = sequence.q[end - num_rows : end]
    result = triton_ops.paged_attention(q, cache, layout, batch, 0.25, None, torch.bfloat16)
    assert same_bits(result, run_attention(triton_ops, [(sequence, end - num_rows, end)], 16)[0])


def test_what_cannot_be_is_refused(triton_ops: Ops) -> None:
    layout = triton_ops.kv_layout(16, 1, 16, torch.float32)
    cache = torch.zeros(1, layout.bytes_per_block, dtype=torch.uint8)
    one = torch.zeros(1, dtype=torch.int64)
    batch = AttentionBatch(torch.tensor([0, 1], dtype=torch.int32), torch.zeros(1, 1, dtype=torch.int32), one, one)
    q = torch.zeros(1, 1, 16)
    for scale, window, soft_cap in ((0.0, None, None), (1.0, 0, None), (1.0, None, -1.0)):
        with pytest.raises(ValueError, match="attention with scale"):
            triton_ops.paged_attention(q, cache, layout, batch, scale, window, torch.float32, soft_cap)
    with pytest.raises(TypeError, match="another backend: str"):
        triton_ops.paged_attention(q, cache, layout, replace(batch, work="?"), 1.0, None, torch.float32)
