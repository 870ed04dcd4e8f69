"""Paged attention: accuracy against float64, and bits that follow the row's own query, position and keys alone."""

from collections.abc import Iterator

import kernel_oracles as oracle
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import PagedSequence, is_interpreted, random_sequence, run_attention
from kernel_oracles import same_bits

from kernels.ops import AttentionBatch, Ops

DTYPES = [torch.float32, torch.bfloat16]
KV_DTYPES = [torch.float32, torch.bfloat16, torch.int8, torch.float8_e4m3fn]
LENGTH = 1100  # crosses a segment


@pytest.fixture(autouse=True)
def quiet_interpreter() -> Iterator[None]:
    """Triton's interpreter computes by numpy, which warns of what a GPU, and torch, make inf or NaN of."""
    with np.errstate(all="ignore"):
        yield


def tolerance_of(ops: Ops, dtype: torch.dtype, kv_dtype: torch.dtype) -> float:
    """Relative to the result, or to values about 1."""
    if dtype == kv_dtype == torch.float32:
        return 3e-6
    # A GPU's matrix unit takes the weights in bfloat16 too: they are rounded, then the result is.
    return 2**-7 if ops.name == "triton" and dtype == torch.bfloat16 else 2**-8


def mixed_spans(ops: Ops) -> list[tuple[int, int]]:
    """Rows of sequences that decode and that do not, across borders of tiles and segments."""
    if is_interpreted(ops):
        return [(55, 70), (199, 200), (180, 195), (0, 1), (1100, 1103)]
    return [(0, 70), (199, 200), (130, 190), (0, 1), (1100, 1103)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads", "head_size", "block_size", "window"),
    [(9, 3, 64, 16, None), (4, 4, 16, 32, 50), (7, 1, 24, 64, 64), (40, 2, 8, 128, None), (2, 1, 80, 16, 1)],
)
def test_attention_matches_float64(
    ops: Ops, num_heads: int, num_kv_heads: int, head_size: int, block_size: int, window: int | None, dtype: torch.dtype
) -> None:
    spans = mixed_spans(ops)
    sequences = [random_sequence(i, end, num_heads, num_kv_heads, head_size, dtype) for i, (_, end) in enumerate(spans)]
    chunks = [(sequence, *span) for sequence, span in zip(sequences, spans, strict=True)]
    results = run_attention(ops, chunks, block_size, window)
    for result, (sequence, start, end) in zip(results, chunks, strict=True):
        positions = torch.arange(start, end)
        expected = oracle.attention(sequence.q[start:end], sequence.k, sequence.v, positions, head_size**-0.5, window)
        tolerance = tolerance_of(ops, dtype, dtype)
        torch.testing.assert_close(result.double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_the_cache_may_have_a_dtype_of_its_own(ops: Ops, dtype: torch.dtype, kv_dtype: torch.dtype) -> None:
    """The result is that of the keys and values as the cache keeps them; int8: within what 8 bits can say."""
    if kv_dtype not in ops.kv_dtypes:
        pytest.skip(f"{ops.name} has no cache in {kv_dtype}")
    spans = mixed_spans(ops)
    sequences = [random_sequence(i, end, 6, 2, 16, dtype) for i, (_, end) in enumerate(spans)]
    chunks = [(sequence, *span) for sequence, span in zip(sequences, spans, strict=True)]
    results = run_attention(ops, chunks, 32, kv_dtype=kv_dtype)
    for result, (sequence, start, end) in zip(results, chunks, strict=True):
        k, v = (oracle.as_cached(rows.float(), kv_dtype) for rows in (sequence.k, sequence.v))
        positions = torch.arange(start, end)
        expected = oracle.attention(sequence.q[start:end], k, v, positions, 0.25, None)
        tolerance = tolerance_of(ops, dtype, kv_dtype)
        torch.testing.assert_close(result.double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_rows_of_any_cache_are_the_same_as_decode_and_in_any_chunk(ops: Ops, kv_dtype: torch.dtype) -> None:
    if kv_dtype not in ops.kv_dtypes:
        pytest.skip(f"{ops.name} has no cache in {kv_dtype}")
    sequence = random_sequence(3, 200, 6, 2, 16, torch.bfloat16)
    for start, end in ((0, 10), (60, 70), (188, 200)) if is_interpreted(ops) else ((0, 200),):
        whole = run_attention(ops, [(sequence, start, end)], 64, kv_dtype=kv_dtype)[0]
        for row in {0, 63, 64, 100, 199} & set(range(start, end)):
            alone = run_attention(ops, [(sequence, row, row + 1)], 16, kv_dtype=kv_dtype)[0][0]
            assert same_bits(alone, whole[row - start])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("soft_cap", "window"), [(0.5, None), (30.0, 40)])
def test_a_soft_cap_bends_scores(ops: Ops, soft_cap: float, window: int | None, dtype: torch.dtype) -> None:
    spans = mixed_spans(ops)
    sequences = [random_sequence(i, end, 6, 2, 16, dtype) for i, (_, end) in enumerate(spans)]
    chunks = [(sequence, *span) for sequence, span in zip(sequences, spans, strict=True)]
    results = run_attention(ops, chunks, 16, window, soft_cap=soft_cap)
    for result, (sequence, start, end) in zip(results, chunks, strict=True):
        positions = torch.arange(start, end)
        expected = oracle.attention(sequence.q[start:end], sequence.k, sequence.v, positions, 0.25, window, soft_cap)
        tolerance = tolerance_of(ops, dtype, dtype)
        torch.testing.assert_close(result.double(), expected, rtol=tolerance, atol=tolerance)


@pytest.fixture(scope="module", params=DTYPES, ids=str)
def sequence(request: pytest.FixtureRequest) -> PagedSequence:
    return random_sequence(7, LENGTH, 6, 2, 16, request.param)


CHOSEN = [0, 1, 63, 64, 65, 128, 200, 959, 1023, 1024, 1025, 1087, 1088, LENGTH - 1]


CHUNKS = [
    (1, [0, LENGTH], 64),
    (1, [0, 3, 70, 128, 500, 1023, 1030, LENGTH], 32),
    (2, [950, 1000, 1024, 1089, LENGTH], 128),
]
INTERPRETED_CHUNKS = [
    (1, [0, 3, 14], 64),
    (1, [55, 70], 32),
    (1, [950, 960], 128),
    (1, [1015, 1030], 16),
    (1, [1078, 1089, LENGTH], 128),
]


@pytest.mark.parametrize("window", [None, 64, 100])
def test_rows_are_the_same_as_decode_and_in_any_chunk(ops: Ops, sequence: PagedSequence, window: int | None) -> None:
    decoded = {row: run_attention(ops, [(sequence, row, row + 1)], 16, window)[0][0] for row in CHOSEN}
    for threads, borders, block_size in INTERPRETED_CHUNKS if is_interpreted(ops) else CHUNKS:
        torch.set_num_threads(threads)
        for start, end in zip(borders[:-1], borders[1:], strict=True):
            together = run_attention(ops, [(sequence, start, end)], block_size, window)[0]
            for row in set(CHOSEN) & set(range(start, end)):
                assert same_bits(together[row - start], decoded[row]), row


def test_neighbours_make_no_difference(ops: Ops) -> None:
    """A random batch of decodes and chunks gives each row what it gets alone."""

    @settings(max_examples=5 if is_interpreted(ops) else 25, deadline=None, derandomize=True)
    @given(data=st.data())
    def check(data: st.DataObject) -> None:
        dtype = data.draw(st.sampled_from(DTYPES))
        window = data.draw(st.sampled_from([None, 30, 64, 200]))
        chunks = []
        for index in range(data.draw(st.integers(2, 6))):
            end = data.draw(st.integers(1, 300))
            start = data.draw(st.sampled_from([0, end - 1, end // 2]))
            if is_interpreted(ops):
                start = max(start, end - 12)
            chunks.append((random_sequence(index, end, 6, 2, 16, dtype), start, end))
        together = run_attention(ops, chunks, 16, window, seed=1)
        for result, (sequence, start, end) in zip(together, chunks, strict=True):
            for row in {(start + end) // 2} if is_interpreted(ops) else {start, (start + end) // 2, end - 1}:
                alone = run_attention(ops, [(sequence, row, row + 1)], 32, window)[0]
                assert same_bits(alone[0], result[row - start])

    check()


def test_a_window_as_long_as_the_context_changes_nothing(ops: Ops, sequence: PagedSequence) -> None:
    start = LENGTH - 15 if is_interpreted(ops) else 1000
    full = run_attention(ops, [(sequence, start, LENGTH)], 16, None)[0]
    assert same_bits(full, run_attention(ops, [(sequence, start, LENGTH)], 16, LENGTH)[0])


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("part", ["k", "v"])
def test_later_tokens_do_not_reach_earlier_rows(ops: Ops, sequence: PagedSequence, part: str, bad: float) -> None:
    """A value that is not finite spoils the rows that see it, and no other."""
    broken = PagedSequence(sequence.q, sequence.k.clone(), sequence.v.clone())
    getattr(broken, part)[90, 1] = bad
    other = random_sequence(1, 40, 6, 2, 16, sequence.q.dtype)
    for start, end in ((82, 94), (149, 160)) if is_interpreted(ops) else ((0, 200),):
        expected = run_attention(ops, [(sequence, start, end)], 16, 64)[0]
        result, neighbour = run_attention(ops, [(broken, start, end), (other, 39, 40)], 16, 64)
        sees = torch.tensor([90 <= row < 90 + 64 for row in range(start, end)])
        assert same_bits(result[~sees], expected[~sees])
        assert same_bits(result[sees][:, :3], expected[sees][:, :3])  # the other KV head
        assert not result[sees][0, 3:].isfinite().all()
        assert neighbour.isfinite().all()
        if part == "v":
            assert not result[sees][:, 3:].isfinite().any()


def test_empty_sequences_and_spare_rows(ops: Ops, sequence: PagedSequence) -> None:
    """A sequence without rows in the step is skipped."""
    layout = ops.kv_layout(16, 2, 16, sequence.q.dtype)
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
    layout = ops.kv_layout(16, 2, 16, torch.float32)
    empty = torch.zeros(0, dtype=torch.int64)
    batch = AttentionBatch(torch.zeros(1, dtype=torch.int32), torch.zeros(0, 1, dtype=torch.int32), empty, empty)
    cache = torch.zeros(1, layout.bytes_per_block, dtype=torch.uint8)
    result = ops.paged_attention(torch.zeros(0, 4, 16), cache, layout, batch, 1.0, None, torch.bfloat16)
    assert result.shape == (0, 4, 16)
