"""The kernels' cases on tiny shapes: they run on every backend, and count what they move and compute."""

from collections.abc import Iterator

import pytest
import torch

from benchmarks.ceilings import ReadCeiling, TilePeaks
from benchmarks.kernel_cases import (
    DTYPE_NAMES,
    SAMPLING,
    Backends,
    Case,
    attention_case,
    linear_case,
    norm_case,
    pack_copies,
    rotary_case,
    sampling_case,
)
from benchmarks.kernels import Bench, case_row, ceilings_table
from benchmarks.shapes import LLAMA_1B, SMOLLM2, LinearShape, Shapes
from benchmarks.step_bytes import StepBytes, linear_shapes
from benchmarks.timing import time_in_turns
from engine_core.models.config import ArchitectureConfig
from engine_core.models.rope_config import RopeConfig
from ipc.errors import ConfigError
from kernels.native.build import NativeUnavailable
from kernels.native.library import Library
from kernels.native.ops import NativeOps
from kernels.ops import load

TINY = Shapes("tiny", 64, 4, 2, 16, 96, 100, segments=2)


@pytest.fixture(scope="module")
def library() -> Library:
    try:
        return Library.load(threads=1)
    except NativeUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def backends(library: Library) -> Backends:
    return Backends({"native": NativeOps(library), "reference": load("reference")}, cache_bytes=2**12)


def cases(backends: Backends) -> Iterator[Case]:
    for dtype in DTYPE_NAMES:
        for shape in (*TINY.linears, TINY.head):
            yield linear_case(backends, shape, dtype, 3, pack_copies(backends, shape, dtype))
        yield rotary_case(backends, TINY, 3, dtype)
        yield attention_case(backends, TINY, dtype, 3, 40, 1)
        yield attention_case(backends, TINY, dtype, 1, 8, 20)
    yield norm_case(backends, TINY, 3)
    for kind in SAMPLING:
        yield sampling_case(backends, TINY, kind, 3)


def test_every_case_runs_on_every_backend(backends: Backends) -> None:
    names = set()
    for case in cases(backends):
        results = [case.calls[name]() for name in ("native", "reference")]
        if isinstance(results[0], torch.Tensor) and "attention" not in case.name:
            # Attention reads another random cache on each backend.
            torch.testing.assert_close(*results, rtol=0.05, atol=0.05)
        assert case.num_bytes > 0
        names.add(case.name)
    assert len(names) == 3 * (5 + 3) + 1 + len(SAMPLING)


def test_bytes_and_operations_are_counted(backends: Backends) -> None:
    shape = LinearShape("l", 32, 16)
    case = linear_case(backends, shape, torch.bfloat16, 4, pack_copies(backends, shape, torch.bfloat16))
    assert (case.num_bytes, case.num_flops) == (32 * 16 * 2 + 4 * 16 * 2, 2 * 4 * 32 * 16)
    case = attention_case(backends, TINY, torch.float32, 2, 4, 1)
    assert case.num_flops == 2 * 5 * 4 * (4 * 16)
    assert case.num_bytes == 2 * 5 * (2 * 2 * 16 * 4) + 2 * (2 * 4 * 16 * 4)


def test_copies_exceed_the_last_cache() -> None:
    backends = Backends({}, cache_bytes=100)
    assert [backends.num_copies(size) for size in (1, 10, 150, 1000)] == [64, 20, 2, 1]


def test_a_row_says_the_nearer_ceiling() -> None:
    case = Case("c", {}, num_bytes=50, num_flops=300, peak="float32", num_rows=2)
    times = {"native": [4.0, 8.0], "reference": [8.0, 24.0], "read": [1.0, 1.0], "peak": [1.0, 2.0]}
    row = case_row(case, times, read_bytes=100, peak_flops=150)
    assert row[-2:] == ["arithmetic", "50 (50 - 50) %"]  # 300 of 150 a call: 2 and 4 seconds at least
    assert row[3] == "2.5 (2.0 - 3.0)"
    assert row[4] == "3000000.00"
    row = case_row(case, {"native": [4.0], "read": [4.0]}, read_bytes=100, peak_flops=150)
    assert (row[2], row[3], row[-2], row[-1]) == ("-", "-", "memory", "50 (50 - 50) %")


def test_ceilings_are_measured(library: Library) -> None:
    read = ReadCeiling(library, num_bytes=2**16)
    peaks = TilePeaks(NativeOps(library), 1, num_rows=4, num_inputs=64)
    backends = Backends({"native": NativeOps(library)}, 1)
    bench = Bench(backends, read, peaks, num_rounds=2, seconds=0.0)
    table = ceilings_table(bench)
    assert [row[1] for row in table.rows[1:]] == [
        *("bfloat16 native", "int8 native", "float32 native", "bfloat16 torch.mm", "float32 torch.mm")
    ]
    assert read.measure() > 0
    assert len(bench.row(norm_case(backends, TINY, 2))) == 9


def test_calls_take_turns() -> None:
    called: list[str] = []
    times = time_in_turns({"a": lambda: called.append("a"), "b": lambda: called.append("b")}, 2, 0.0)
    assert called == ["a", "b"] * 3  # one to warm up and two rounds
    assert [len(own) for own in times.values()] == [2, 2]


def test_a_short_call_is_repeated() -> None:
    called: list[int] = []
    time_in_turns({"a": lambda: called.append(1)}, 1, 1e-3)
    assert len(called) > 3


CONFIG = ArchitectureConfig(
    architecture="llama",
    vocab_size=SMOLLM2.vocab,
    hidden_size=SMOLLM2.hidden,
    intermediate_size=SMOLLM2.intermediate,
    num_layers=30,
    num_heads=SMOLLM2.num_heads,
    num_kv_heads=SMOLLM2.num_kv_heads,
    head_size=SMOLLM2.head_size,
    max_position_embeddings=8192,
    rms_norm_eps=1e-5,
    rope=RopeConfig("default", 10000.0, SMOLLM2.head_size),
    tie_word_embeddings=True,
    attention_bias=False,
    output_bias=False,
    mlp_bias=False,
    qk_norm=False,
    windows=(None,) * 30,
    torch_dtype=None,
)


def test_the_shapes_are_the_models() -> None:
    num_weights = sum(outputs * inputs for outputs, inputs in linear_shapes(CONFIG))
    assert num_weights == 134_479_872
    for shapes in (SMOLLM2, LLAMA_1B):
        assert all(shape.num_inputs % shape.segments == 0 for shape in shapes.linears)
    one_layer = sum(shape.num_outputs * shape.num_inputs for shape in SMOLLM2.linears)
    assert 30 * one_layer + SMOLLM2.vocab * SMOLLM2.hidden == num_weights


def test_bytes_of_a_step() -> None:
    plain = StepBytes.of(CONFIG, "bfloat16", "none", "auto")
    assert plain == StepBytes(2 * 134_479_872, 2 * 3 * 64 * 2 * 30)
    assert plain.of_step(2, 100.5) == plain.weights + 201 * plain.kv_token
    small = StepBytes.of(CONFIG, "bfloat16", "int8", "int8")
    num_outputs = sum(outputs for outputs, _ in linear_shapes(CONFIG))
    assert small == StepBytes(134_479_872 + 4 * num_outputs, 2 * 3 * (64 + 4) * 30)
    head = 49152 * 576  # in int8
    four_bits = 134_479_872 - head
    expected = head + four_bits // 2 + four_bits // 32 * 2 + 4 * num_outputs
    assert StepBytes.of(CONFIG, "bfloat16", "int4", "auto").weights == expected
    with pytest.raises(ConfigError, match="int3"):
        StepBytes.of(CONFIG, "bfloat16", "int3", "auto")
