"""Native linear layers on every instruction set of this host: accuracy, bits that depend on the row alone, fusion."""

import pytest
import torch
from kernel_oracles import same_bits
from native_libraries import allocate, library_of, run
from native_linear_cases import quantize_rows, segment_slices, tree_sum
from torch import Tensor

from kernels.native import layers, linear
from kernels.native.library import ISAS, Library
from kernels.native.linear import LinearLayout, NativeLinear
from kernels.native.ops import NativeOps
from kernels.ops import Quantization

SHAPES = [  # K, N, segments
    (576, 192, 3),
    (96, 576, 1),
    (520, 48, 4),
    (64, 96, 2),
    (128, 80, 8),
    (33, 7, 1),
    (33, 7, 3),
    (1, 1, 1),
    (17, 130, 1),
]
DTYPES = [torch.float32, torch.bfloat16]


@pytest.fixture(scope="module", params=ISAS)
def library(request: pytest.FixtureRequest) -> Library:
    return library_of(request.param)


def random_case(num_inputs: int, num_outputs: int, num_rows: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(num_inputs * 1000 + num_outputs)
    x = torch.randn(num_rows, num_inputs, generator=generator)
    return x.to(dtype), torch.randn(num_outputs, num_inputs, generator=generator).to(dtype)


def multiply(
    library: Library,
    x: Tensor,
    weight: NativeLinear,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
) -> Tensor:
    return run(library, "octavo_linear", linear.prepare_linear(x, weight, bias, residual, allocate))


def multiply_gated(
    library: Library, x: Tensor, weight: NativeLinear, bias: Tensor | None, dtype: torch.dtype
) -> Tensor:
    return run(library, "octavo_linear", linear.prepare_gated_linear(x, weight, bias, dtype, allocate))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("num_inputs", "num_outputs", "segments"), SHAPES)
def test_result_matches_float64(
    library: Library, num_inputs: int, num_outputs: int, segments: int, dtype: torch.dtype
) -> None:
    x, weight = random_case(num_inputs, num_outputs, 21, dtype)
    bias = torch.linspace(-1, 1, num_outputs)
    result = multiply(library, x, linear.pack_linear(library, weight, segments), bias)
    expected = x.double() @ weight.double().t() + bias.double()
    magnitude = x.double().abs() @ weight.double().abs().t() + bias.double().abs()
    assert result.dtype == torch.float32
    assert ((result - expected).abs() <= magnitude * 2**-24 * (2 + num_inputs**0.5)).all()


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "int8-32", "int8-64", "int4-32"])
@pytest.mark.parametrize(("num_inputs", "num_outputs", "segments"), SHAPES)
def test_rows_depend_on_themselves_alone(
    library: Library, num_inputs: int, num_outputs: int, segments: int, kind: str
) -> None:
    """Whatever the number of rows, their order, their stride and the number of threads."""
    x, weight = random_case(num_inputs, num_outputs, 131, torch.float32 if kind == "float32" else torch.bfloat16)
    packed = pack(library, weight, segments, kind)
    library.set_num_threads(1)
    expected = torch.cat([multiply(library, x[row : row + 1], packed) for row in range(len(x))])
    generator = torch.Generator().manual_seed(1)
    for threads in (1, 2, 3):
        library.set_num_threads(threads)
        for num_rows in (2, 3, 14, 15, 16, 29, 131):
            chosen = torch.randperm(len(x), generator=generator)[:num_rows]
            assert same_bits(multiply(library, x[chosen], packed), expected[chosen])
        strided = torch.cat([x, x], dim=1)[:, 1 : num_inputs + 1]
        assert same_bits(multiply(library, strided, packed), multiply(library, strided.clone(), packed))


def pack(library: Library, weight: Tensor, segments: int, kind: str, *, is_gated: bool = False) -> NativeLinear:
    """``kind``: the weight's own dtype, or the quantization and the size of a group."""
    name, _, size = kind.partition("-")
    if not size:
        return linear.pack_linear(library, weight, segments, is_gated=is_gated)
    quantization: Quantization = "int8" if name == "int8" else "int4"
    return linear.pack_linear(
        library, weight, segments, is_gated=is_gated, quantization=quantization, group_size=int(size)
    )


def test_many_inputs_are_cut_into_blocks_of_rows(library: Library) -> None:
    """Rows whose inputs exceed a core's cache."""
    x, weight = random_case(4096, 40, 110, torch.bfloat16)
    packed = linear.pack_linear(library, weight)
    library.set_num_threads(2)
    expected = torch.cat([multiply(library, x[row : row + 1], packed) for row in range(len(x))])
    assert same_bits(multiply(library, x, packed), expected)


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "int8-64", "int4-32"])
@pytest.mark.parametrize("segments", [1, 2, 3, 5, 6, 8])
def test_segments_are_summed_alone_and_added_in_a_tree(library: Library, segments: int, kind: str) -> None:
    x, weight = random_case(24 * segments, 40, 5, torch.float32 if kind == "float32" else torch.bfloat16)
    packed = pack(library, weight, segments, kind)
    parts = []
    for columns in segment_slices(x.shape[1], segments):
        if packed.channel_scales is not None:  # the scale of a channel is that of all segments
            part = NativeLinear(
                LinearLayout(40, 24, packed.layout.dtype, 1, packed.layout.group_size),
                packed.data.view(2, segments, -1)[:, columns.start // 24].flatten(),
                torch.ones(64),
            )
            parts.append(multiply(library, x[:, columns], part))
        else:
            parts.append(multiply(library, x[:, columns], linear.pack_linear(library, weight[:, columns])))
    expected = tree_sum(parts)
    if packed.channel_scales is not None:
        expected = expected * packed.channel_scales[:40]
    assert same_bits(multiply(library, x, packed), expected)


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "int8-64", "int4-32"])
@pytest.mark.parametrize("num_rows", [1, 5, 40])
def test_residual_is_added_as_by_itself(library: Library, num_rows: int, kind: str) -> None:
    x, weight = random_case(96, 70, num_rows, torch.float32 if kind == "float32" else torch.bfloat16)
    packed, bias = pack(library, weight, 3, kind), torch.linspace(-1, 1, 70)
    residual = torch.randn(num_rows, 140, generator=torch.Generator().manual_seed(0))[:, 3:73]
    assert same_bits(multiply(library, x, packed, bias, residual), multiply(library, x, packed, bias) + residual)


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "int8-64", "int4-32"])
@pytest.mark.parametrize("size", [16, 24, 40])
@pytest.mark.parametrize("out_dtype", DTYPES)
def test_gate_and_up_are_fused_as_one_after_the_other(
    library: Library, size: int, kind: str, out_dtype: torch.dtype
) -> None:
    x, weight = random_case(64, 2 * size, 19, torch.float32 if kind == "float32" else torch.bfloat16)
    bias = torch.linspace(-2, 2, 2 * size)
    plain, gated = (pack(library, weight, 1, kind, is_gated=is_gated) for is_gated in (False, True))
    both = multiply(library, x, plain, bias)
    assert same_bits(multiply(library, x, gated, bias), both)
    expected = run(library, "octavo_silu_and_mul", layers.prepare_silu_and_mul(both, out_dtype, allocate))
    assert same_bits(multiply_gated(library, x, gated, bias, out_dtype), expected)


def test_nan_rows_leave_their_neighbours_alone(library: Library) -> None:
    x, weight = random_case(48, 33, 9, torch.float32)
    broken = x.clone()
    broken[4, 3] = float("nan")
    broken[6] = float("inf")
    for kind in ("float32", "int8-32", "int4-32"):
        packed = pack(library, weight, 3, kind)
        result, expected = multiply(library, broken, packed), multiply(library, x, packed)
        kept = torch.tensor([0, 1, 2, 3, 5, 7, 8])
        assert same_bits(result[kept], expected[kept])
        assert result[4].isnan().all()
        assert not result[6].isfinite().any()


@pytest.mark.parametrize("group_size", [32, 64])
@pytest.mark.parametrize(("num_inputs", "num_outputs", "segments"), SHAPES)
def test_int8_is_exact_in_groups_of_quantized_inputs(
    library: Library, num_inputs: int, num_outputs: int, segments: int, group_size: int
) -> None:
    """Against float64 sums of independently quantized operands: only the few float32 additions may round."""
    x, weight = random_case(num_inputs, num_outputs, 6, torch.float32)
    packed = linear.pack_linear(library, weight, segments, quantization="int8", group_size=group_size)
    rounded_weight = quantize_rows(weight)
    expected = torch.zeros(6, num_outputs, dtype=torch.float64)
    magnitude = torch.zeros(6, num_outputs, dtype=torch.float64)
    for columns in segment_slices(num_inputs, segments):
        for start in range(columns.start, columns.stop, group_size):
            group = slice(start, min(start + group_size, columns.stop))
            part = quantize_rows(x[:, group]) @ rounded_weight[:, group].t()
            expected, magnitude = expected + part, magnitude + part.abs()
    result = multiply(library, x, packed)
    assert ((result - expected).abs() <= magnitude * 2**-24 * (4 + num_inputs / group_size)).all()


@pytest.mark.parametrize("num_rows", [1, 11, 12, 16, 17, 33, 80])
@pytest.mark.parametrize("num_inputs", [576, 520])
@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_quantized_bits_are_the_same_on_every_instruction_set(
    library: Library, num_inputs: int, num_rows: int, quantization: Quantization
) -> None:
    """However many rows there are: with matrix tiles their number decides which instructions are taken."""
    x, weight = random_case(num_inputs, 200, num_rows, torch.bfloat16)
    segments = 3 if num_inputs % 3 == 0 else 4
    results = []
    for other in (library, library_of("generic")):
        packed = linear.pack_linear(other, weight, segments, quantization=quantization)
        results.append(multiply(other, x, packed))
    assert same_bits(results[0], results[1])


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_zeros_and_tiny_numbers_quantized(library: Library, quantization: Quantization) -> None:
    weight = torch.stack([torch.zeros(32), torch.ones(32), torch.full((32,), 1e-38)])
    packed = linear.pack_linear(library, weight, quantization=quantization)
    x = torch.stack([torch.zeros(32), torch.full((32,), 1e-40), torch.ones(32)])
    result = multiply(library, x, packed)
    assert same_bits(result, torch.tensor([[0.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 32.0, 0.0]]))


def test_no_rows(library: Library) -> None:
    packed = linear.pack_linear(library, torch.ones(5, 32))
    assert multiply(library, torch.zeros(0, 32), packed).shape == (0, 5)


def test_quantizations_of_other_backends_are_refused(library: Library) -> None:
    with pytest.raises(ValueError, match="fp8"):
        NativeOps(library).pack_linear(torch.ones(4, 32), quantization="fp8")


def test_wrong_arguments_are_refused(library: Library) -> None:
    weight = torch.ones(4, 32)
    with pytest.raises(ValueError, match="segments"):
        linear.pack_linear(library, weight, 3)
    with pytest.raises(ValueError, match="float16"):
        linear.pack_linear(library, weight.half())
    with pytest.raises(ValueError, match="groups of 48"):
        linear.pack_linear(library, weight, quantization="int8", group_size=48)
    packed = linear.pack_linear(library, weight)
    with pytest.raises(TypeError, match="bfloat16"):
        multiply(library, torch.ones(1, 32, dtype=torch.bfloat16), packed)
    with pytest.raises(ValueError, match="31 columns"):
        multiply(library, torch.ones(1, 31), packed)
    with pytest.raises(ValueError, match="bias"):
        multiply(library, torch.ones(1, 32), packed, torch.ones(5))
    with pytest.raises(ValueError, match="residual"):
        multiply(library, torch.ones(1, 32), packed, None, torch.ones(1, 5))
    with pytest.raises(ValueError, match="not gated"):
        multiply_gated(library, torch.ones(1, 32), packed, None, torch.float32)
    with pytest.raises(ValueError, match="multiple of 64"):
        NativeLinear(packed.layout, torch.empty(packed.layout.num_bytes + 1, dtype=torch.uint8)[1:])
