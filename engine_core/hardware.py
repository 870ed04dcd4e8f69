"""What an engine runs on: a device and its kernels, chosen from the configuration, or one line that says why not."""

from dataclasses import dataclass

import structlog
import torch

from engine_core import registry
from engine_core.device.queue import Device
from ipc.config import CacheConfig, EngineConfig, ModelConfig
from ipc.errors import ConfigError
from kernels.native import create as create_native
from kernels.native.build import NativeUnavailable
from kernels.native.library import num_allowed_cores
from kernels.ops import Ops
from kernels.ops import load as load_kernels

log = structlog.get_logger("octavo.engine")

DTYPES = {"auto": torch.bfloat16, "bfloat16": torch.bfloat16, "float32": torch.float32}
KV_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "int8": torch.int8,
    "fp8": torch.float8_e4m3fn,
}


@dataclass(frozen=True, slots=True)
class Hardware:
    """``overlap``: whether the next step is scheduled while one runs."""

    device: Device
    ops: Ops
    overlap: bool


def find_hardware(config: EngineConfig) -> Hardware:
    """Raises ConfigError for a device that is not there or cannot do what is asked of it."""
    wanted = config.model.device
    ops: Ops | None = None
    if wanted == "cuda" or (wanted == "auto" and torch.cuda.is_available()):
        try:
            ops = load_cuda_ops(config.model)
        except ConfigError as error:
            if wanted == "cuda":
                raise
            log.warning("the GPU is not used, the CPU is", reason=str(error))
    kind = registry.load("device", "cpu" if ops is None else "cuda")
    if ops is None:
        ops = load_cpu_ops(config.model.cpu_threads)
    is_said = config.scheduler.async_scheduling
    overlap = kind.overlaps_by_default if is_said is None else is_said
    device: Device = kind(overlap=overlap, graphs=not config.model.enforce_eager)
    check_numbers(config.model, config.cache, ops, device.name)
    return Hardware(device, ops, overlap)


def load_cuda_ops(config: ModelConfig) -> Ops:
    """The Triton kernels. Raises ConfigError where they cannot run."""
    try:
        from kernels.triton import create
        from kernels.triton.target import UnsupportedDevice
    except ModuleNotFoundError as error:
        if error.name != "triton":
            raise
        raise ConfigError("--device cuda: the kernels need triton; pip install 'octavo[cuda]'") from None
    try:
        return create(batch_invariant=config.batch_invariant)
    except UnsupportedDevice as error:
        raise ConfigError(f"--device cuda: {error}; --device cpu runs anywhere") from None


def load_cpu_ops(num_threads: int | None) -> Ops:
    """The CPU's kernels: native ones, or the reference on a machine where they cannot be built."""
    try:
        ops: Ops = create_native(threads=num_threads)
    except NativeUnavailable as error:
        log.warning("no native kernels, so the slower reference kernels run", reason=str(error))
        torch.set_num_threads(num_threads or num_allowed_cores())
        return load_kernels("reference")
    torch.set_num_threads(1)  # the native kernels have threads of their own
    return ops


def check_numbers(model: ModelConfig, cache: CacheConfig, ops: Ops, device_name: str) -> None:
    """Raises ConfigError for numbers that the kernels do not have on this device."""
    where = f"not on {device_name} ({ops.isa.partition('-')[0]}) with the {ops.name} kernels, which have"
    if model.quantization is not None and model.quantization not in ops.quantizations:
        raise ConfigError(f"--quantization {model.quantization}: {where} {', '.join(sorted(ops.quantizations))}")
    if cache.kv_cache_dtype != "auto" and KV_DTYPES[cache.kv_cache_dtype] not in ops.kv_dtypes:
        known = [name for name, dtype in KV_DTYPES.items() if dtype in ops.kv_dtypes]
        raise ConfigError(f"--kv-cache-dtype {cache.kv_cache_dtype}: {where} {', '.join(known)}")
