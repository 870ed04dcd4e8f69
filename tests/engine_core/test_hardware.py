"""What an engine runs on, and one line for what it cannot."""

from typing import Any

import pytest
import torch

from engine_core import hardware
from engine_core.hardware import check_numbers, find_hardware, load_cuda_ops
from ipc.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig, TransportConfig
from ipc.errors import ConfigError
from kernels.ops import load
from kernels.triton import create_interpreted


def make_config(*, scheduler: SchedulerConfig = SchedulerConfig(), **model: Any) -> EngineConfig:  # noqa: B008
    return EngineConfig(
        model=ModelConfig(model="m", cpu_threads=1, **model),
        scheduler=scheduler,
        transport=TransportConfig(endpoint="ipc://unused"),
    )


pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="of a machine without a GPU")


def test_the_cpu_where_there_is_no_gpu() -> None:
    found = find_hardware(make_config())
    assert found.device.torch_device.type == "cpu"
    assert found.ops.name in ("native", "reference")
    assert not found.overlap


@pytest.mark.parametrize("overlap", [True, False])
def test_overlap_is_as_wanted(overlap: bool) -> None:
    found = find_hardware(make_config(scheduler=SchedulerConfig(async_scheduling=overlap)))
    assert found.overlap is overlap
    found.device.close()


def test_a_gpu_that_is_not_there_is_one_line() -> None:
    with pytest.raises(ConfigError) as caught:
        find_hardware(make_config(device="cuda"))
    assert str(caught.value).startswith("--device cuda: ")
    assert "CUDA" in str(caught.value)
    assert "--device cpu" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_old_gpu_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Properties:
        name, major, minor, multi_processor_count = "NVIDIA T4", 7, 5, 40

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: Properties)
    with pytest.raises(ConfigError, match=r"NVIDIA T4 has compute capability 7\.5, the kernels need 8\.0"):
        load_cuda_ops(ModelConfig(model="m"))


def test_auto_says_why_a_gpu_is_not_used(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(config: ModelConfig) -> Any:
        raise ConfigError("--device cuda: too old")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(hardware, "load_cuda_ops", refuse)
    assert find_hardware(make_config()).device.torch_device.type == "cpu"
    output = capsys.readouterr()
    assert "too old" in output.out + output.err


def test_auto_does_not_leave_a_gpu_for_numbers_that_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has a GPU and asks for what it cannot do is told so, and not served by the CPU."""

    class Device:
        name, overlaps_by_default = "NVIDIA Double", True

        def __init__(self, *, overlap: bool, graphs: bool) -> None: ...

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(hardware, "load_cuda_ops", lambda config: create_interpreted())
    monkeypatch.setattr("engine_core.device.cuda.CudaDevice", Device)
    with pytest.raises(ConfigError, match="--quantization int4: not on NVIDIA Double .* fp8, int8"):
        find_hardware(make_config(quantization="int4"))


def test_triton_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import builtins

    original = builtins.__import__

    def without_triton(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("kernels.triton"):
            raise ModuleNotFoundError("No module named 'triton'", name="triton")
        return original(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_triton)
    with pytest.raises(ConfigError, match=r"pip install 'octavo\[cuda\]'"):
        load_cuda_ops(ModelConfig(model="m"))


@pytest.mark.parametrize(
    ("model", "cache", "problem"),
    [
        ({"quantization": "fp8"}, {}, "--quantization fp8: not on CPU.*int4, int8"),
        ({}, {"kv_cache_dtype": "fp8"}, "--kv-cache-dtype fp8: not on CPU.*float32, bfloat16, int8"),
    ],
)
def test_numbers_that_the_kernels_lack_are_refused_by_name(
    model: dict[str, Any], cache: dict[str, Any], problem: str
) -> None:
    class Ops:
        name, isa = "native", "avx2"
        quantizations = frozenset({"int8", "int4"})
        kv_dtypes = frozenset({torch.float32, torch.bfloat16, torch.int8})

    with pytest.raises(ConfigError, match=problem):
        check_numbers(ModelConfig(model="m", **model), CacheConfig(**cache), Ops, "CPU")  # type: ignore[arg-type]


def test_the_reference_has_all_numbers() -> None:
    model = ModelConfig(model="m", quantization="fp8")
    check_numbers(model, CacheConfig(kv_cache_dtype="fp8"), load("reference"), "CPU")
