"""Native per-row operations on every instruction set: accuracy, bits that follow the row alone, fusion, placement."""

import ctypes
from collections.abc import Callable, Iterator

import kernel_oracles as oracle
import pytest
import torch
from kernel_oracles import same_bits
from native_kv_cases import KV_DTYPES, unpack, write_kv
from native_libraries import allocate, library_of, run
from torch import Tensor

from kernels.native import attention, layers
from kernels.native.attention import NativeKVLayout
from kernels.native.library import VECTOR_ISAS, Library

DTYPES = [torch.float32, torch.bfloat16]
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2**-8}
NUM_ROWS = 201


@pytest.fixture(params=VECTOR_ISAS)
def library(request: pytest.FixtureRequest) -> Iterator[Library]:
    """On one thread, until the test asks for more."""
    library = library_of(request.param)
    yield library
    library.set_num_threads(1)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def assert_close(result: Tensor, expected: Tensor) -> None:
    tolerance = TOLERANCE[result.dtype]
    torch.testing.assert_close(result.double(), expected, rtol=tolerance, atol=tolerance * 1e-1)


def rms_norm(library: Library, x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    return run(library, "octavo_rms_norm", layers.prepare_rms_norm(x, weight, eps, dtype, allocate))


def silu_and_mul(library: Library, gate_up: Tensor, dtype: torch.dtype) -> Tensor:
    return run(library, "octavo_silu_and_mul", layers.prepare_silu_and_mul(gate_up, dtype, allocate))


def rotary(library: Library, x: Tensor, positions: Tensor, cos_sin: Tensor, dtype: torch.dtype) -> Tensor:
    return run(library, "octavo_rotary", layers.prepare_rotary(x, positions, cos_sin, dtype, allocate))


def embed(library: Library, ids: Tensor, table: Tensor) -> Tensor:
    return run(library, "octavo_embed", layers.prepare_embed(ids, table, allocate))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 7, 64, 80, 576])
def test_norms_match_float64(library: Library, size: int, dtype: torch.dtype) -> None:
    x, weight = random(13, size) * 30, random(size, seed=1)
    assert_close(rms_norm(library, x, weight, 1e-5, dtype), oracle.rms_norm(x, weight, 1e-5))
    assert not rms_norm(library, torch.zeros(2, size), weight, 1e-6, dtype).any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_heads_are_normed_one_by_one(library: Library, dtype: torch.dtype) -> None:
    fused, weight = random(5, 7, 24), random(24, seed=1)
    heads = fused[:, 2:5]
    result = rms_norm(library, heads, weight, 1e-6, dtype)
    assert_close(result, oracle.rms_norm(heads, weight, 1e-6))
    assert same_bits(rms_norm(library, fused[:, 3], weight, 1e-6, dtype), result[:, 1])


@pytest.mark.parametrize("dtype", DTYPES)
def test_silu_and_mul_matches_float64(library: Library, dtype: torch.dtype) -> None:
    gate = torch.cat([torch.linspace(-120, 120, 4001), torch.tensor([0.0, 1e-20, -1e-20])])
    gate_up = torch.cat([gate, random(len(gate)) * 3]).unsqueeze(0)
    expected = oracle.silu_and_mul(gate_up)
    result = silu_and_mul(library, gate_up, dtype).double()
    assert ((result - expected).abs() <= expected.abs() * TOLERANCE[dtype] + 1e-35).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("head_size", "rotated"), [(16, 16), (16, 8), (64, 64), (40, 36)])
def test_rotary_matches_complex_rotation(library: Library, head_size: int, rotated: int, dtype: torch.dtype) -> None:
    angles = torch.arange(100)[:, None] * 10.0 ** -torch.linspace(0, 3, rotated // 2)
    cos_sin = torch.cat([angles.cos(), angles.sin()], dim=-1)
    fused, positions = random(9, 5, head_size), torch.arange(9) * 11
    x = fused[:, 1:4]
    result = rotary(library, x, positions, cos_sin, dtype)
    tolerance = TOLERANCE[dtype]
    expected = oracle.rotary(x, positions, cos_sin)
    torch.testing.assert_close(result.double(), expected, rtol=tolerance, atol=tolerance * 4)
    assert same_bits(result[..., rotated:], x[..., rotated:].to(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [12, 64])
def test_embed_takes_rows(library: Library, size: int, dtype: torch.dtype) -> None:
    table = random(50, size).to(dtype)
    chosen = torch.tensor([3, 3, 49, 0])
    assert same_bits(embed(library, chosen, table), table[chosen].float())


def operations(dtype: torch.dtype) -> dict[str, Callable[[Library, Tensor], Tensor]]:
    """Each operation on chosen rows of one fixed input, wide enough that threads share the rows."""
    x, weight = random(NUM_ROWS, 594) * 4, random(594, seed=2)
    positions, cos_sin, table = torch.arange(NUM_ROWS) % 64, random(64, 66, seed=3), random(NUM_ROWS, 594).to(dtype)
    return {
        "embed": lambda library, rows: embed(library, rows, table),
        "rms_norm": lambda library, rows: rms_norm(library, x[rows], weight, 1e-5, dtype),
        "silu_and_mul": lambda library, rows: silu_and_mul(library, x[rows], dtype),
        "rotary": lambda library, rows: rotary(library, x[rows].view(-1, 9, 66), positions[rows], cos_sin, dtype),
    }


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["embed", "rms_norm", "silu_and_mul", "rotary"])
def test_rows_depend_on_themselves_alone(library: Library, name: str, dtype: torch.dtype) -> None:
    operation = operations(dtype)[name]
    expected = torch.cat([operation(library, torch.tensor([row])) for row in range(NUM_ROWS)])
    shuffled = torch.randperm(NUM_ROWS, generator=torch.Generator().manual_seed(1))
    for threads in (1, 2):
        library.set_num_threads(threads)
        for rows in (torch.arange(NUM_ROWS), shuffled, shuffled[:17]):
            assert same_bits(operation(library, rows), expected[rows])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["embed", "rms_norm", "silu_and_mul", "rotary"])
def test_instruction_sets_agree(library: Library, name: str, dtype: torch.dtype) -> None:
    """These operations are made of single correctly rounded ones."""
    operation, rows = operations(dtype)[name], torch.arange(20)
    assert same_bits(operation(library, rows), operation(library_of("generic"), rows))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
@pytest.mark.parametrize(("block_size", "head_size"), [(16, 64), (64, 6), (128, 40)])
def test_write_kv_rounds_and_places(
    library: Library, block_size: int, head_size: int, kv_dtype: torch.dtype, dtype: torch.dtype
) -> None:
    layout = NativeKVLayout(block_size, 2, head_size, kv_dtype)
    slots = torch.tensor([0, 3 * block_size + 1, block_size, 2 * block_size - 1, 7])
    k, v = random(5, 2, head_size).to(dtype), random(5, 2, head_size, seed=1).to(dtype)
    k[4, 1] = 0.0
    cache = torch.zeros(4, layout.bytes_per_block, dtype=torch.uint8)
    write_kv(library, k, v, cache, layout, slots)
    expected_k, expected_v = (torch.zeros(4 * block_size, 2, head_size, dtype=torch.float64) for _ in range(2))
    expected_k[slots], expected_v[slots] = oracle.as_cached(k.float(), kv_dtype), oracle.as_cached(v.float(), kv_dtype)
    written_k, written_v = unpack(cache, layout)
    assert torch.equal(written_k, expected_k)
    assert torch.equal(written_v, expected_v)
    spoiled = torch.full_like(cache, 0xA5)
    write_kv(library, k, v, spoiled, layout, slots)
    num_written = 2 * 5 * 2 * (head_size * kv_dtype.itemsize + (4 if kv_dtype == torch.int8 else 0))
    other = torch.full_like(cache, 0x5A)
    write_kv(library, k, v, other, layout, slots)
    assert int((spoiled == other).sum()) == num_written, "nothing but these tokens changes"


def test_a_token_that_is_not_finite_has_no_scale(library: Library) -> None:
    layout = NativeKVLayout(16, 1, 8, torch.int8)
    k, v = random(2, 1, 8), random(2, 1, 8, seed=1)
    k[0, 0, 3], v[1, 0, 0] = float("inf"), float("nan")
    cache = torch.zeros(1, layout.bytes_per_block, dtype=torch.uint8)
    write_kv(library, k, v, cache, layout, torch.arange(2))
    written_k, written_v = unpack(cache, layout)
    assert written_k[:2].isnan().all(-1).tolist() == [[True], [False]]
    assert written_v[:2].isnan().all(-1).tolist() == [[False], [True]]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
@pytest.mark.parametrize("has_norms", [False, True])
@pytest.mark.parametrize(("heads", "head_size", "rotated"), [((9, 3), 64, 64), ((4, 4), 24, 16)])
def test_fused_rotary_and_write_is_its_parts(
    library: Library,
    heads: tuple[int, int],
    head_size: int,
    rotated: int,
    has_norms: bool,
    kv_dtype: torch.dtype,
    dtype: torch.dtype,
) -> None:
    num_heads, num_kv_heads = heads
    num_rows, block_size = 40, 32
    fused = random(num_rows, num_heads + 2 * num_kv_heads, head_size)
    q, k, v = fused.split([num_heads, num_kv_heads, num_kv_heads], dim=1)
    positions, cos_sin = torch.arange(num_rows) + 3, random(64, rotated, seed=3)
    slots = torch.randperm(2 * block_size, generator=torch.Generator().manual_seed(1))[:num_rows]
    layout = NativeKVLayout(block_size, num_kv_heads, head_size, kv_dtype)
    norms = (random(head_size, seed=4), random(head_size, seed=5), 1e-5) if has_norms else None
    caches = [torch.zeros(2, layout.bytes_per_block, dtype=torch.uint8) for _ in range(3)]
    for threads, cache in zip((1, 2), caches[:2], strict=True):
        library.set_num_threads(threads)
        prepared = attention.prepare_rotary_write_kv(
            q, k, v, norms, positions, cos_sin, cache, layout, slots, dtype, allocate
        )
        result = run(library, "octavo_rotary_write_kv", prepared)
        turned_q, turned_k = q, k
        if norms is not None:
            turned_q = rms_norm(library, q, norms[0], norms[2], torch.float32)
            turned_k = rms_norm(library, k, norms[1], norms[2], torch.float32)
        assert same_bits(result, rotary(library, turned_q, positions, cos_sin, dtype))
    turned_k = rotary(library, turned_k, positions, cos_sin, dtype)
    write_kv(library, turned_k, v.to(dtype), caches[2], layout, slots)
    assert torch.equal(caches[0], caches[2])
    assert torch.equal(caches[1], caches[2])


@pytest.mark.parametrize("destinations", [[1, 2, 0, 4], [5, 6, 7, 8]])
def test_copy_blocks_reads_before_it_writes(library: Library, destinations: list[int]) -> None:
    cache = torch.arange(9, dtype=torch.uint8)[:, None].repeat(1, 40)
    expected = cache.clone()
    sources, targets = torch.tensor([0, 1, 2, 1]), torch.tensor(destinations)
    expected[targets] = cache[sources]
    library.call("octavo_copy_blocks", layers.prepare_copy_blocks(cache, sources, targets))
    assert torch.equal(cache, expected)


def test_tokens_are_stored_and_gathered(library: Library) -> None:
    tokens = torch.zeros(3, 5, dtype=torch.int32)
    slots, positions = torch.tensor([0, 2, 2, 1, 1]), torch.tensor([4, 0, 5, 1, -1])
    ids = torch.tensor([7, 8, 9, 10, 11])
    library.call("octavo_store_tokens", layers.prepare_store_tokens(tokens, slots, positions, ids))
    assert tokens.tolist() == [[0, 0, 0, 0, 7], [0, 10, 0, 0, 0], [8, 0, 0, 0, 0]]
    slots, positions = torch.tensor([1, 0]), torch.tensor([1, 4])
    out, args = layers.prepare_gather_tokens(
        tokens, slots, positions, lambda shape, dtype: torch.zeros(shape, dtype=dtype)
    )
    library.call("octavo_gather_tokens", args)
    assert out.tolist() == [10, 7]


def refused(error: type[Exception], call: Callable[[], object]) -> None:
    with pytest.raises(error):
        call()


def test_operands_that_cannot_be_read_are_refused() -> None:
    x, weight = torch.zeros(2, 8), torch.ones(8)
    layout = NativeKVLayout(16, 2, 8, torch.bfloat16)
    cache, slots = torch.zeros(1, layout.bytes_per_block, dtype=torch.uint8), torch.arange(2)
    heads, f32 = torch.zeros(2, 2, 8), torch.float32
    refused(TypeError, lambda: layers.prepare_rms_norm(x.double(), weight, 1e-5, f32, allocate))
    refused(TypeError, lambda: layers.prepare_rms_norm(x, weight, 1e-5, torch.float16, allocate))
    refused(ValueError, lambda: layers.prepare_rms_norm(x, weight[:7], 1e-5, f32, allocate))
    refused(ValueError, lambda: layers.prepare_rms_norm(torch.zeros(8, 2).t(), weight, 1e-5, f32, allocate))
    refused(ValueError, lambda: layers.prepare_silu_and_mul(torch.zeros(2, 7), f32, allocate))
    refused(ValueError, lambda: layers.prepare_rotary(heads, slots, torch.zeros(4, 10), f32, allocate))
    refused(ValueError, lambda: layers.prepare_rotary(heads, slots[:1], torch.zeros(4, 8), f32, allocate))
    refused(TypeError, lambda: layers.prepare_embed(slots.int(), x, allocate))
    refused(ValueError, lambda: attention.prepare_write_kv(heads, heads[:, :1], cache, layout, slots))
    refused(TypeError, lambda: attention.prepare_write_kv(heads, heads, cache.view(torch.int8), layout, slots))
    refused(ValueError, lambda: attention.prepare_write_kv(heads, heads, cache, layout, torch.arange(4)[::2]))


def test_structures_have_the_size_of_their_fields() -> None:
    """Only fields of eight bytes: no padding that C and ctypes could place differently."""
    for module in (layers, attention):
        for structure in vars(module).values():
            if isinstance(structure, type) and issubclass(structure, ctypes.Structure) and structure._fields_:
                sizes = [ctypes.sizeof(field[1]) for field in structure._fields_]
                assert ctypes.sizeof(structure) == sum(sizes)
                assert all(size % 8 == 0 for size in sizes)
