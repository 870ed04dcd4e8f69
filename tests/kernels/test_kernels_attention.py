"""Paged attention: accuracy against float64, and bits that follow the row's own query, position and keys alone."""

import kernel_oracles as oracle
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import PagedSequence, random_sequence, run_attention
from kernel_oracles import same_bits

from kernels.ops import AttentionBatch, KVLayout, Ops

DTYPES = [torch.float32, torch.bfloat16]
KV_DTYPES = [torch.float32, torch.bfloat16, torch.int8]
LENGTH = 1100  # crosses a segment


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads", "head_size", "block_size", "window"),
    [(9, 3, 64, 16, None), (4, 4, 16, 32, 50), (7, 1, 24, 64, 64), (40, 2, 8, 128, None), (2, 1, 80, 16, 1)],
)
def test_attention_matches_float64(
    ops: Ops, num_heads: int, num_kv_heads: int, head_size: int, block_size: int, window: int | None, dtype: torch.dtype
) -> None:
    spans = [(0, 70), (199, 200), (130, 190), (0, 1), (1100, 1103)]
    sequences = [random_sequence(i, end, num_heads, num_kv_heads, head_size, dtype) for i, (_, end) in enumerate(spans)]
    chunks = [(sequence, *span) for sequence, span in zip(sequences, spans, strict=True)]
    results = run_attention(ops, chunks, block_size, window)
    for result, (sequence, start, end) in zip(results, chunks, strict=True):
        positions = torch.arange(start, end)
        expected = oracle.attention(sequence.q[start:end], sequence.k, sequence.v, positions, head_size**-0.5, window)
        tolerance = 3e-6 if dtype == torch.float32 else 2**-8
        torch.testing.assert_close(result.double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_the_cache_may_have_a_dtype_of_its_own(ops: Ops, dtype: torch.dtype, kv_dtype: torch.dtype) -> None:
    """The result is that of the keys and values as the cache keeps them; int8: within what 8 bits can say."""
    spans = [(0, 70), (199, 200), (130, 190), (1100, 1103)]
    sequences = [random_sequence(i, end, 6, 2, 16, dtype) for i, (_, end) in enumerate(spans)]
    chunks = [(sequence, *span) for sequence, span in zip(sequences, spans, strict=True)]
    results = run_attention(ops, chunks, 32, kv_dtype=kv_dtype)
    for result, (sequence, start, end) in zip(results, chunks, strict=True):
        k, v = (oracle.as_cached(rows.float(), kv_dtype) for rows in (sequence.k, sequence.v))
        positions = torch.arange(start, end)
        expected = oracle.attention(sequence.q[start:end], k, v, positions, 0.25, None)
        tolerance = 3e-6 if dtype == torch.float32 and kv_dtype == torch.float32 else 2**-8
        torch.testing.assert_close(result.double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_rows_of_any_cache_are_the_same_as_decode_and_in_any_chunk(ops: Ops, kv_dtype: torch.dtype) -> None:
    sequence = random_sequence(3, 200, 6, 2, 16, torch.bfloat16)
    whole = run_attention(ops, [(sequence, 0, 200)], 64, kv_dtype=kv_dtype)[0]
    for row in (0, 63, 64, 100, 199):
        assert same_bits(run_attention(ops, [(sequence, row, row + 1)], 16, kv_dtype=kv_dtype)[0][0], whole[row])


@pytest.fixture(scope="module", params=DTYPES, ids=str)
def sequence(request: pytest.FixtureRequest) -> PagedSequence:
    return random_sequence(7, LENGTH, 6, 2, 16, request.param)


CHOSEN = [0, 1, 63, 64, 65, 128, 200, 959, 1023, 1024, 1025, 1087, 1088, LENGTH - 1]


@pytest.mark.parametrize("window", [None, 64, 100])
def test_rows_are_the_same_as_decode_and_in_any_chunk(ops: Ops, sequence: PagedSequence, window: int | None) -> None:
    decoded = {row: run_attention(ops, [(sequence, row, row + 1)], 16, window)[0][0] for row in CHOSEN}
    for threads, borders, block_size in (
        (1, [0, LENGTH], 64),
        (1, [0, 3, 70, 128, 500, 1023, 1030, LENGTH], 32),
        (2, [950, 1000, 1024, 1089, LENGTH], 128),
    ):
        torch.set_num_threads(threads)
        parts = [
            run_attention(ops, [(sequence, start, end)], block_size, window)[0]
            for start, end in zip(borders[:-1], borders[1:], strict=True)
        ]
        together = torch.cat(parts)
        for row in CHOSEN:
            assert row < borders[0] or same_bits(together[row - borders[0]], decoded[row]), row


@settings(max_examples=25, deadline=None, derandomize=True)
@given(data=st.data())
def test_neighbours_make_no_difference(ops: Ops, data: st.DataObject) -> None:
    """A random batch of decodes and chunks gives each row what it gets alone."""
    dtype = data.draw(st.sampled_from(DTYPES))
    window = data.draw(st.sampled_from([None, 30, 64, 200]))
    chunks = []
    for index in range(data.draw(st.integers(2, 6))):
        end = data.draw(st.integers(1, 300))
        start = data.draw(st.sampled_from([0, end - 1, end // 2]))
        chunks.append((random_sequence(index, end, 6, 2, 16, dtype), start, end))
    together = run_attention(ops, chunks, 16, window, seed=1)
    for result, (sequence, start, end) in zip(together, chunks, strict=True):
        for row in {start, (start + end) // 2, end - 1}:
            alone = run_attention(ops, [(sequence, row, row + 1)], 32, window)[0]
            assert same_bits(alone[0], result[row - start])


def test_a_window_as_long_as_the_context_changes_nothing(ops: Ops, sequence: PagedSequence) -> None:
    full = run_attention(ops, [(sequence, 1000, LENGTH)], 16, None)[0]
    assert same_bits(full, run_attention(ops, [(sequence, 1000, LENGTH)], 16, LENGTH)[0])


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("part", ["k", "v"])
def test_later_tokens_do_not_reach_earlier_rows(ops: Ops, sequence: PagedSequence, part: str, bad: float) -> None:
    """A value that is not finite spoils the rows that see it, and no other."""
    broken = PagedSequence(sequence.q, sequence.k.clone(), sequence.v.clone())
    getattr(broken, part)[90, 1] = bad
    other = random_sequence(1, 40, 6, 2, 16, sequence.q.dtype)
    expected = run_attention(ops, [(sequence, 0, 200)], 16, 64)[0]
    result, neighbour = run_attention(ops, [(broken, 0, 200), (other, 39, 40)], 16, 64)
    clean = [row for row in range(200) if not 90 <= row < 90 + 64]
    assert same_bits(result[clean], expected[clean])
    assert same_bits(result[90:154, :3], expected[90:154, :3])  # the other KV head
    assert not result[90, 3:].isfinite().all()
    assert neighbour.isfinite().all()
    if part == "v":
        assert not result[90:154, 3:].isfinite().any()


def test_empty_sequences_and_spare_rows(ops: Ops, sequence: PagedSequence) -> None:
    """A sequence without rows in the step is skipped."""
    layout = KVLayout(16, 2, 16, sequence.q.dtype)
    cache = torch.zeros(2, layout.bytes_per_block, dtype=torch.uint8)
    ops.write_kv(sequence.k[:20], sequence.v[:20], cache, layout, torch.arange(20))
    batch = AttentionBatch(
        query_start=torch.tensor([0, 0, 2, 2], dtype=torch.int32),
        block_tables=torch.tensor([[0, 0], [0, 1], [0, 0]], dtype=torch.int32),
        positions=torch.tensor([18, 19]),
        kv_slots=torch.tensor([18, 19]),
    )
    result = ops.paged_attention(sequence.q[18:20], cache, layout, batch, 0.25, None, sequence.q.dtype)
    assert same_bits(result, run_attention(ops, [(sequence, 18, 20)], 16)[0])


def test_no_rows(ops: Ops) -> None:
    layout = KVLayout(16, 2, 16, torch.float32)
    empty = torch.zeros(0, dtype=torch.int64)
    batch = AttentionBatch(torch.zeros(1, dtype=torch.int32), torch.zeros(0, 1, dtype=torch.int32), empty, empty)
    cache = torch.zeros(1, layout.bytes_per_block, dtype=torch.uint8)
    result = ops.paged_attention(torch.zeros(0, 4, 16), cache, layout, batch, 1.0, None, torch.bfloat16)
    assert result.shape == (0, 4, 16)
