"""Native attention on every instruction set: accuracy, and bits that follow a row's query, position and keys alone."""

from collections.abc import Iterator

import kernel_oracles as oracle
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kernel_cases import PagedSequence, random_sequence
from kernel_oracles import same_bits
from native_kv_cases import KV_DTYPES, attend, run_attention, write_kv
from native_libraries import allocate, library_of

from kernels.native import attention
from kernels.native.attention import NativeKVLayout
from kernels.native.library import VECTOR_ISAS, Library
from kernels.ops import AttentionBatch

DTYPES = [torch.float32, torch.bfloat16]
PAIRS = [(q, kv) for q in DTYPES for kv in KV_DTYPES]
LENGTH = 2100  # crosses two segments


@pytest.fixture(params=VECTOR_ISAS)
def library(request: pytest.FixtureRequest) -> Iterator[Library]:
    """On one thread, until the test asks for more."""
    library = library_of(request.param)
    yield library
    library.set_num_threads(1)


def make(seed: int, length: int, heads: tuple[int, int, int], q_dtype: torch.dtype) -> PagedSequence:
    """Queries in ``q_dtype``, K and V as a layer gives them: float32 or rounded to it."""
    return random_sequence(seed, length, *heads, q_dtype)


SHAPES = [  # query heads, KV heads, head size; block size, window
    ((9, 3, 64), 16, None),
    ((4, 4, 16), 32, 50),
    ((7, 1, 24), 64, 64),
    ((40, 2, 8), 128, None),
    ((50, 1, 16), 16, 7),
    ((2, 1, 80), 16, 1),
    ((4, 2, 128), 128, None),
    ((2, 1, 256), 48, 90),
    ((3, 3, 6), 16, None),
]


@pytest.mark.parametrize(("q_dtype", "kv_dtype"), PAIRS)
@pytest.mark.parametrize(("heads", "block_size", "window"), SHAPES)
def test_attention_matches_float64(
    library: Library,
    heads: tuple[int, int, int],
    block_size: int,
    window: int | None,
    q_dtype: torch.dtype,
    kv_dtype: torch.dtype,
) -> None:
    spans = [(0, 70), (199, 200), (130, 190), (0, 1), (1100, 1103)]
    sequences = [make(i, end, heads, q_dtype) for i, (_, end) in enumerate(spans)]
    chunks = [(sequence, *span) for sequence, span in zip(sequences, spans, strict=True)]
    results = attend(library, chunks, kv_dtype, block_size, window)
    for result, (sequence, start, end) in zip(results, chunks, strict=True):
        k, v = (oracle.as_cached(part.float(), kv_dtype) for part in (sequence.k, sequence.v))
        positions = torch.arange(start, end)
        expected = oracle.attention(sequence.q[start:end], k, v, positions, heads[2] ** -0.5, window)
        tolerance = 4e-6 if q_dtype == torch.float32 else 2**-8
        torch.testing.assert_close(result.double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("q_dtype", "kv_dtype"), PAIRS)
@pytest.mark.parametrize("window", [None, 50])
def test_capped_attention_matches_float64(
    library: Library, window: int | None, q_dtype: torch.dtype, kv_dtype: torch.dtype
) -> None:
    """Scores of some ten, above and below 0, and a cap of 3."""
    spans, heads = [(0, 70), (199, 200), (1100, 1103)], (6, 2, 48)
    sequences = [make(i, end, heads, q_dtype) for i, (_, end) in enumerate(spans)]
    for sequence in sequences:
        sequence.q.mul_(3)
    chunks = [(sequence, *span) for sequence, span in zip(sequences, spans, strict=True)]
    results = attend(library, chunks, kv_dtype, 16, window, soft_cap=3.0)
    for result, (sequence, start, end) in zip(results, chunks, strict=True):
        k, v = (oracle.as_cached(part.float(), kv_dtype) for part in (sequence.k, sequence.v))
        positions = torch.arange(start, end)
        expected = oracle.attention(sequence.q[start:end], k, v, positions, 48**-0.5, window, 3.0)
        tolerance = 4e-6 if q_dtype == torch.float32 else 2**-8
        torch.testing.assert_close(result.double(), expected, rtol=tolerance, atol=tolerance)
        row = (end - start) // 2
        alone = attend(library, [(sequence, start + row, start + row + 1)], kv_dtype, 32, window, soft_cap=3.0)[0]
        assert same_bits(alone[0], result[row])


def test_weights_keep_more_than_bfloat16(library: Library) -> None:
    """bf16 queries, keys and values, but a float32 result: what the softmax loses is far below bfloat16."""
    sequence = make(3, 300, (3, 1, 64), torch.bfloat16)
    layout = NativeKVLayout(16, 1, 64, torch.bfloat16)
    cache = torch.zeros(19, layout.bytes_per_block, dtype=torch.uint8)
    write_kv(library, sequence.k, sequence.v, cache, layout, torch.arange(300))
    tables = torch.arange(19, dtype=torch.int32).view(1, 19)
    positions = torch.arange(300)
    batch = AttentionBatch(torch.tensor([0, 300], dtype=torch.int32), tables, positions, positions)
    result = run_attention(library, sequence.q, cache, layout, batch, dtype=torch.float32)
    expected = oracle.attention(sequence.q, sequence.k, sequence.v, positions, 1 / 8, None)
    torch.testing.assert_close(result.double(), expected, rtol=2e-5, atol=2e-5)


CHOSEN = [0, 1, 63, 64, 65, 200, 959, 1023, 1024, 1025, 1087, 2047, 2048, 2050, LENGTH - 1]
CHUNKINGS = [  # threads, block size, borders
    (1, 64, [0, LENGTH]),
    (2, 32, [0, LENGTH]),
    (2, 16, [0, 3, 70, 128, 500, 1023, 1030, 2049, LENGTH]),
    (2, 128, [950, 1000, 1024, 1089, 1999, 2051, LENGTH]),
    (3, 16, [2040, 2041, 2050, LENGTH]),
]


@pytest.mark.parametrize(("q_dtype", "kv_dtype"), [(q, kv) for q, kv in PAIRS if kv != torch.float32 or q == kv])
@pytest.mark.parametrize("window", [None, 100, 1500])
def test_rows_are_the_same_as_decode_and_in_any_chunk(
    library: Library, window: int | None, q_dtype: torch.dtype, kv_dtype: torch.dtype
) -> None:
    sequence = make(7, LENGTH, (6, 2, 16), q_dtype)
    decoded = {row: attend(library, [(sequence, row, row + 1)], kv_dtype, 16, window)[0][0] for row in CHOSEN}
    for threads, block_size, borders in CHUNKINGS:
        library.set_num_threads(threads)
        together = torch.cat(
            [
                attend(library, [(sequence, start, end)], kv_dtype, block_size, window)[0]
                for start, end in zip(borders[:-1], borders[1:], strict=True)
            ]
        )
        for row in CHOSEN:
            assert row < borders[0] or same_bits(together[row - borders[0]], decoded[row]), (row, borders)


@pytest.mark.parametrize("heads", [(9, 3, 64), (8, 1, 32), (5, 5, 128)])
def test_long_contexts_are_the_same_when_threads_share_them(library: Library, heads: tuple[int, int, int]) -> None:
    """A decode, a few rows and a neighbour, over segments that are shared out or not."""
    long = make(1, 5000, heads, torch.bfloat16)
    short = make(2, 30, heads, torch.bfloat16)
    chunks = [(short, 29, 30), (long, 4999, 5000), (short, 0, 30), (long, 4090, 4100)]
    alone = [attend(library, [chunk], torch.bfloat16, 16)[0] for chunk in chunks]
    for threads in (1, 2, 3):
        library.set_num_threads(threads)
        for result, expected in zip(attend(library, chunks, torch.bfloat16, 16), alone, strict=True):
            assert same_bits(result, expected)


@settings(max_examples=30, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_neighbours_make_no_difference(library: Library, data: st.DataObject) -> None:
    """A random batch of decodes and chunks gives each row what it gets alone."""
    q_dtype, kv_dtype = data.draw(st.sampled_from(PAIRS))
    heads = data.draw(st.sampled_from([(6, 2, 16), (5, 1, 8), (14, 2, 48), (2, 2, 20)]))
    window = data.draw(st.sampled_from([None, 1, 30, 64, 200]))
    chunks = []
    for index in range(data.draw(st.integers(2, 6))):
        end = data.draw(st.integers(1, 300))
        start = data.draw(st.sampled_from([0, end - 1, end // 2]))
        chunks.append((make(index, end, heads, q_dtype), start, end))
    library.set_num_threads(data.draw(st.integers(1, 2)))
    together = attend(library, chunks, kv_dtype, 16, window, seed=1)
    for result, (sequence, start, end) in zip(together, chunks, strict=True):
        for row in {start, (start + end) // 2, end - 1}:
            alone = attend(library, [(sequence, row, row + 1)], kv_dtype, 32, window)[0]
            assert same_bits(alone[0], result[row - start])


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("part", ["k", "v"])
@pytest.mark.parametrize(("q_dtype", "kv_dtype"), PAIRS)
def test_a_bad_value_spoils_the_rows_that_see_it_alone(
    library: Library, part: str, bad: float, q_dtype: torch.dtype, kv_dtype: torch.dtype
) -> None:
    sequence = make(7, 200, (6, 2, 16), q_dtype)
    broken = PagedSequence(sequence.q, sequence.k.clone(), sequence.v.clone())
    getattr(broken, part)[90, 1] = bad
    other = make(1, 40, (6, 2, 16), q_dtype)
    expected = attend(library, [(sequence, 0, 200)], kv_dtype, 16, 64)[0]
    result, neighbour = attend(library, [(broken, 0, 200), (other, 39, 40)], kv_dtype, 16, 64)
    clean = [row for row in range(200) if not 90 <= row < 90 + 64]
    assert same_bits(result[clean], expected[clean])
    assert same_bits(result[90:154, :3], expected[90:154, :3])  # the other KV head
    assert neighbour.isfinite().all()
    if part == "v" or bad != bad or kv_dtype == torch.int8:
        assert result[90:154, 3:].isnan().all()


def test_a_window_as_long_as_the_context_changes_nothing(library: Library) -> None:
    sequence = make(5, 1200, (6, 2, 16), torch.bfloat16)
    full = attend(library, [(sequence, 1000, 1200)], torch.bfloat16, 16, None)[0]
    assert same_bits(full, attend(library, [(sequence, 1000, 1200)], torch.bfloat16, 16, 1200)[0])


@pytest.mark.parametrize(("dtype", "tiny"), [(torch.float32, -1e-45), (torch.bfloat16, -1.2e-38)])
def test_results_that_round_to_zero_have_one_sign(library: Library, dtype: torch.dtype, tiny: float) -> None:
    """−0 and 0 have different bits, and later tokens that a row does not see add 0."""
    q, k, v = torch.ones(100, 1, 16), torch.full((100, 1, 16), -1.0), torch.full((100, 1, 16), tiny)
    k[0], v[0], v[50:] = 1.0, 0.0, 1.0  # the first token outweighs the others
    sequence = PagedSequence(q.to(dtype), k.to(dtype), v.to(dtype))
    together = attend(library, [(sequence, 0, 100)], dtype, 16)[0]
    assert together[:50].abs().max() < 1e-38
    for row in range(40, 50):
        assert same_bits(together[row : row + 1], attend(library, [(sequence, row, row + 1)], dtype, 16)[0])


def test_empty_sequences_and_spare_rows(library: Library) -> None:
    """A sequence without rows is skipped; rows of no sequence, as a replayed step may have, become 0."""
    sequence = make(7, 20, (6, 2, 16), torch.bfloat16)
    layout = NativeKVLayout(16, 2, 16, torch.bfloat16)
    cache = torch.zeros(2, layout.bytes_per_block, dtype=torch.uint8)
    write_kv(library, sequence.k, sequence.v, cache, layout, torch.arange(20))
    batch = AttentionBatch(
        query_start=torch.tensor([0, 0, 2, 2], dtype=torch.int32),
        block_tables=torch.tensor([[0, 0], [0, 1], [0, 0]], dtype=torch.int32),
        positions=torch.tensor([18, 19, 5, 99999]),
        kv_slots=torch.tensor([18, 19, 0, 0]),
    )
    result = run_attention(library, sequence.q[16:20], cache, layout, batch)
    rows = PagedSequence(sequence.q.roll(2, 0), sequence.k, sequence.v)
    assert same_bits(result[:2], attend(library, [(rows, 18, 20)], torch.bfloat16, 16)[0])
    assert not result[2:].any()


def test_no_rows(library: Library) -> None:
    layout = NativeKVLayout(16, 2, 16, torch.float32)
    empty = torch.zeros(0, dtype=torch.int64)
    batch = AttentionBatch(torch.zeros(1, dtype=torch.int32), torch.zeros(0, 1, dtype=torch.int32), empty, empty)
    cache = torch.zeros(1, layout.bytes_per_block, dtype=torch.uint8)
    assert run_attention(library, torch.zeros(0, 4, 16), cache, layout, batch).shape == (0, 4, 16)


def test_rows_may_be_slices_of_a_wider_buffer(library: Library) -> None:
    sequence = make(9, 50, (6, 2, 16), torch.bfloat16)
    layout = NativeKVLayout(32, 2, 16, torch.bfloat16)
    cache = torch.zeros(2, layout.bytes_per_block, dtype=torch.uint8)
    write_kv(library, sequence.k, sequence.v, cache, layout, torch.arange(50))
    fused = torch.full((50, 9, 16), float("nan"), dtype=torch.bfloat16)
    fused[:, 1:7] = sequence.q
    positions = torch.arange(50)
    tables = torch.tensor([[7, 0, 1, 7]], dtype=torch.int32)[:, 1:]
    batch = AttentionBatch(torch.tensor([0, 50], dtype=torch.int32), tables, positions, positions)
    result = run_attention(library, fused[:, 1:7], cache, layout, batch)
    assert same_bits(result, attend(library, [(sequence, 0, 50)], torch.bfloat16, 16)[0])


def make_batch() -> AttentionBatch:
    one = torch.zeros(1, dtype=torch.int64)
    return AttentionBatch(torch.tensor([0, 1], dtype=torch.int32), torch.zeros(1, 1, dtype=torch.int32), one, one)


@pytest.mark.parametrize(
    ("error", "change"),
    [
        (ValueError, {"scale": 0.0}),
        (ValueError, {"scale": float("nan")}),
        (ValueError, {"window": 0}),
        (ValueError, {"soft_cap": 0.0}),
        (ValueError, {"q": torch.zeros(1, 3, 16)}),
        (ValueError, {"q": torch.zeros(2, 4, 16)}),
        (ValueError, {"q": torch.zeros(1, 16, 4).transpose(1, 2)}),
        (ValueError, {"cache": torch.zeros(1, 100, dtype=torch.uint8)}),
        (TypeError, {"q": torch.zeros(1, 4, 16, dtype=torch.float16)}),
        (TypeError, {"dtype": torch.int8}),
    ],
)
def test_operands_that_cannot_be_read_are_refused(error: type[Exception], change: dict[str, object]) -> None:
    layout = NativeKVLayout(16, 2, 16, torch.float32)
    operands = {
        "q": torch.zeros(1, 4, 16),
        "cache": torch.zeros(1, layout.bytes_per_block, dtype=torch.uint8),
        "layout": layout,
        "batch": make_batch(),
        "scale": 1.0,
        "window": None,
        "dtype": torch.float32,
    }
    with pytest.raises(error):
        attention.prepare_paged_attention(**(operands | change), empty=allocate)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("error", "fields"),
    [
        (ValueError, (24, 2, 16, torch.float32)),
        (ValueError, (16, 2, 7, torch.bfloat16)),
        (ValueError, (16, 2, 2048, torch.float32)),
        (TypeError, (16, 2, 16, torch.float16)),
    ],
)
def test_layouts_that_do_not_exist_are_refused(
    error: type[Exception], fields: tuple[int, int, int, torch.dtype]
) -> None:
    with pytest.raises(error):
        NativeKVLayout(*fields)
