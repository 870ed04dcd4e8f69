"""The only wiring of an engine: from its configuration to an ``EngineCore`` that is ready to run."""

import time
from dataclasses import asdict, astuple, dataclass, replace
from importlib.util import find_spec
from pathlib import Path

import structlog
import torch

from engine_core import registry
from engine_core.beam import BeamSearches
from engine_core.channel import Channel
from engine_core.core import EngineCore
from engine_core.device.cpu import free_memory_bytes
from engine_core.device.queue import Device
from engine_core.executor.step_timing import StepTimer, measure_step_memory
from engine_core.executor.uniproc import UniprocExecutor
from engine_core.hardware import DTYPES, KV_DTYPES, Hardware, find_hardware
from engine_core.kv_cache.block_files import DEFAULT_MAX_BYTES, BlockFiles
from engine_core.kv_cache.disk_thread import DiskThread
from engine_core.kv_cache.host_tier import HostTier
from engine_core.kv_cache.manager import KVCacheManager
from engine_core.kv_cache.tier_costs import TierCosts
from engine_core.kv_cache.tiers import KVTiers, NoTiers
from engine_core.models.config import ArchitectureConfig, read_config
from engine_core.models.decoder import DecoderModel
from engine_core.models.identity import model_digest, num_token_ids
from engine_core.models.loader import load_model
from engine_core.models.weight_size import weight_bytes
from engine_core.numerics import numerics_id
from engine_core.profiling import LoopProfiler
from engine_core.request_builder import AddReader
from engine_core.runner.memory import (
    check_longest_sequence,
    cpu_kv_memory,
    gpu_kv_memory,
    num_host_blocks,
    num_kv_blocks,
)
from engine_core.runner.model_runner import ModelRunner, RunnerSizes
from engine_core.scheduler.budget import DEFAULT_MAX_TOKENS
from engine_core.scheduler.policy import Policy
from engine_core.scheduler.scheduler import Scheduler, SchedulerLimits
from engine_core.step_cost import StepCost
from engine_core.structured_output.backend import GrammarBackend
from engine_core.structured_output.pool import GrammarPool
from engine_core.torch_recorder import TorchRecorder
from ipc.config import CacheConfig, EngineConfig, ModelConfig, StructuredOutputConfig
from ipc.errors import ConfigError
from ipc.journal import StepJournal
from ipc.messages import PROTOCOL, Ready
from kernels.ops import KVLayout

log = structlog.get_logger("octavo.engine")


@dataclass(frozen=True, slots=True)
class Engine:
    """What ``__main__`` runs."""

    core: EngineCore
    runner: ModelRunner
    ready: Ready
    build_request: AddReader


def build_engine(config: EngineConfig, channel: Channel) -> Engine:
    """Load the model and put the engine together. Raises ConfigError, one line, when something cannot work."""
    folder = Path(config.model.model)
    architecture = read_config(folder)
    max_model_len = choose_max_model_len(config.model, architecture)
    hardware = find_hardware(config)
    device = hardware.device
    policy = load_policy(config.scheduler.scheduling_policy)
    identity = model_digest(folder)
    runner, sizes, layout = load_runner(config, architecture, hardware, identity, max_model_len)
    timer = StepTimer(runner, sizes, device)
    timed = StepCost(*config.step_seconds) if config.step_seconds else timer.measure_cost()
    log.info("steps timed", **{f"{name}_us": round(value * 1e6, 3) for name, value in asdict(timed).items()})
    # Whoever says how many tokens a step may hold gets that many, however long they take.
    step_cost = timed if config.scheduler.max_num_batched_tokens is None else None
    numerics = numerics_id(
        ops_name=hardware.ops.name,
        isa=hardware.ops.isa,
        model_digest=identity,
        dtype=str(DTYPES[config.model.dtype]),
        kv_layout_id=layout.layout_id,
        settings=f"{config.model.quantization} {config.model.load_format} {config.model.seed} {max_model_len}",
    )
    kv = KVCacheManager(
        sizes.num_blocks,
        sizes.block_size,
        enable_prefix_caching=config.cache.enable_prefix_caching,
        root=bytes.fromhex(numerics),
        tiers=make_tiers(config.cache, runner, timer, sizes, timed, numerics),
    )
    limits = SchedulerLimits(sizes.max_num_seqs, sizes.max_num_batched_tokens, max_model_len, step_cost)
    scheduler = Scheduler(policy, kv, limits, time.monotonic_ns)
    profiler = make_profiler(config, device, channel)
    core = EngineCore(
        scheduler,
        UniprocExecutor(runner, device),
        channel,
        incarnation=config.transport.incarnation,
        overlap=hardware.overlap,
        clock=time.monotonic_ns,
        beams=BeamSearches(scheduler, sizes.num_token_ids),
        grammars=make_grammars(config.structured_output, folder, architecture.vocab_size),
        journal=None if config.journal is None else StepJournal(Path(config.journal), limits.max_num_seqs),
        profiler=profiler,
    )
    if profiler is not None and config.profile.profile_step is not None:
        profiler.arm(core, config.profile.profile_step)
    ready = Ready(
        protocol=PROTOCOL,
        incarnation=config.transport.incarnation,
        numerics_id=numerics,
        model_digest=identity.hex(),
        vocab_size=architecture.vocab_size,
        num_token_ids=sizes.num_token_ids,
        max_model_len=max_model_len,
        block_size=sizes.block_size,
        num_blocks=sizes.num_blocks,
        monotonic_ns=time.monotonic_ns(),
        wall_ns=time.time_ns(),
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        step_seconds=astuple(timed),
    )
    _log_sizes(ready)
    return Engine(core, runner, ready, AddReader(architecture.vocab_size, kv.extend_hashes))


def load_runner(
    config: EngineConfig, architecture: ArchitectureConfig, hardware: Hardware, identity: bytes, max_model_len: int
) -> tuple[ModelRunner, RunnerSizes, KVLayout]:
    """The model and as much room for its KV as there is. Raises ConfigError when memory is too small."""
    started = time.monotonic()
    folder, device, dtype = Path(config.model.model), hardware.device, DTYPES[config.model.dtype]
    free_at_start = device.free_memory_bytes()
    if device.has_own_memory:
        check_weights(config, architecture, dtype, device.name, free_at_start)
    try:
        model = load_model(
            folder,
            architecture,
            dtype=dtype,
            load_format=config.model.load_format,
            seed=config.model.seed,
            max_model_len=max_model_len,
            ops=hardware.ops,
            quantization=config.model.quantization,
            device=device.torch_device,
            model_digest=identity,
        )
        log.info("model loaded", seconds=round(time.monotonic() - started, 2), model=str(folder))
        layout = choose_kv_layout(config.cache, model)
        sizes = choose_sizes(config, model, layout, max_model_len, device, free_at_start)
        return ModelRunner(model, layout, sizes, device), sizes, layout
    except torch.OutOfMemoryError as error:  # somebody else took it meanwhile, or weights as they are packed
        reason = str(error).partition("\n")[0]
        raise ConfigError(
            f"{device.name} has too little memory for the model: {reason} A lower --max-model-len, --max-num-seqs or "
            "--max-num-batched-tokens, or --quantization int8, takes less"
        ) from error


def make_tiers(
    config: CacheConfig,
    runner: ModelRunner,
    timer: StepTimer,
    sizes: RunnerSizes,
    step_cost: StepCost,
    numerics: str,
) -> KVTiers:
    """Where KV goes that the device has no room for. A disk that does not work costs a warning, not the start."""
    if not sizes.num_host_blocks:
        return NoTiers()
    speed = timer.measure_copy_speed()
    log.info("KV tiers", host_blocks=sizes.num_host_blocks, copied_mb_a_second=round(speed / 1e6))
    disk = None
    if config.kv_disk_path is not None:
        num_bytes = DEFAULT_MAX_BYTES if config.kv_disk_bytes is None else config.kv_disk_bytes
        try:
            disk = DiskThread(BlockFiles(Path(config.kv_disk_path), numerics, num_bytes), runner.host_block)
        except OSError as error:
            log.warning("no disk tier of the KV cache", reason=str(error))
    costs = TierCosts(config.preemption_mode, len(runner.host_block(0)), speed, step_cost)
    return HostTier(sizes.num_blocks, sizes.num_host_blocks, costs, disk)


def make_profiler(config: EngineConfig, device: Device, channel: Channel) -> LoopProfiler | None:
    """None where there is no folder for profiles."""
    folder = config.profile.profile_dir
    if folder is None:
        return None
    record = TorchRecorder(Path(folder), config.transport.incarnation, device.torch_device.type)
    return LoopProfiler(record, channel.post, channel.send)


def make_grammars(config: StructuredOutputConfig, folder: Path, vocab_size: int) -> GrammarPool:
    """The pool that compiles grammars; its backend is imported when the first one comes.

    Raises ConfigError for a backend that is not there.
    """
    name = config.grammar_backend
    if name not in registry.names("grammar_backend"):
        raise ConfigError(f"--grammar-backend {name}: known are {', '.join(registry.names('grammar_backend'))}")
    if name == "xgrammar" and find_spec("xgrammar") is None:
        raise ConfigError("--grammar-backend xgrammar: it is not installed; pip install 'octavo[xgrammar]'")

    def load_backend() -> GrammarBackend:
        backend: GrammarBackend = registry.load("grammar_backend", name)(folder / "tokenizer.json", vocab_size)
        return backend

    return GrammarPool(load_backend, vocab_size, config.grammar_timeout)


def load_policy(name: str) -> Policy:
    """A fresh policy. Raises ConfigError for a name that is none's."""
    try:
        policy: Policy = registry.load("policy", name)()
    except ConfigError as error:
        raise ConfigError(f"--scheduling-policy: {error}") from error
    return policy


def choose_max_model_len(config: ModelConfig, architecture: ArchitectureConfig) -> int:
    """The context in tokens. Raises ConfigError when the model cannot have that much."""
    longest = architecture.max_position_embeddings
    if config.max_model_len is None:
        return longest
    if config.max_model_len > longest:
        raise ConfigError(f"--max-model-len {config.max_model_len}: the model's positions end at {longest}")
    return config.max_model_len


def choose_kv_layout(config: CacheConfig, model: DecoderModel) -> KVLayout:
    """Raises ConfigError for a model whose heads the kernels cannot keep."""
    dtype = model.dtype if config.kv_cache_dtype == "auto" else KV_DTYPES[config.kv_cache_dtype]
    try:
        return model.kv_layout(config.block_size, dtype)
    except ValueError as error:
        raise ConfigError(f"the {model.ops.name} kernels cannot keep this model's KV: {error}") from error


def check_weights(
    config: EngineConfig, architecture: ArchitectureConfig, dtype: torch.dtype, device_name: str, free_bytes: int
) -> None:
    """Raises ConfigError when they cannot fit on the device, before they are read."""
    share = config.cache.gpu_memory_utilization
    room = int(share * free_bytes)
    needed = weight_bytes(architecture, dtype.itemsize, config.model.quantization)
    if needed <= room:
        return
    smaller = {
        "--dtype bfloat16": weight_bytes(architecture, 2, None),
        "--quantization int8": weight_bytes(architecture, 2, "int8"),
    }
    fitting = [f"{flag} ({size / 2**30:.1f} GiB)" for flag, size in smaller.items() if size <= room]
    raise ConfigError(
        f"the weights take {needed / 2**30:.1f} GiB, {device_name} has room for {room / 2**30:.1f} GiB "
        f"(--gpu-memory-utilization {share:g} of what is free): "
        + (f"{' or '.join(fitting)} would fit" if fitting else "no --dtype or --quantization would fit")
    )


def choose_sizes(
    config: EngineConfig,
    model: DecoderModel,
    layout: KVLayout,
    max_model_len: int,
    device: Device,
    free_at_start: int,
) -> RunnerSizes:
    """Blocks and slots. ``free_at_start``: bytes, before the weights were loaded. Raises ConfigError when memory is too
    small."""
    sizes = RunnerSizes(
        max_num_seqs=config.scheduler.max_num_seqs,
        max_num_batched_tokens=config.scheduler.max_num_batched_tokens or DEFAULT_MAX_TOKENS,
        num_blocks=0,
        block_size=layout.block_size,
        max_model_len=max_model_len,
        num_token_ids=num_token_ids(Path(config.model.model)),
        graph_rows=tuple(sorted(set(config.model.cudagraph_capture_sizes))) or None,
    )
    if device.has_own_memory:
        step_bytes = measure_step_memory(model, layout, sizes, device)
        free = device.free_memory_bytes()
        share = config.cache.gpu_memory_utilization
        memory = gpu_kv_memory(share=share, free_at_start=free_at_start, free_now=free, step_bytes=step_bytes)
        log.info("memory measured", free_mib=free >> 20, largest_step_mib=step_bytes >> 20, kv_cache_mib=memory >> 20)
        free -= step_bytes
    else:
        free = device.free_memory_bytes()
        memory = cpu_kv_memory(free)
    bytes_per_block = layout.bytes_per_block * model.num_layers
    num_blocks = num_kv_blocks(
        config.cache,
        bytes_per_block=bytes_per_block,
        free_bytes=free,
        memory=memory,
        most=sizes.max_num_seqs * -(-max_model_len // layout.block_size),
    )
    if device.has_own_memory:
        check_longest_sequence(num_blocks, layout.block_size, max_model_len, device.name)
    free_on_host = free_memory_bytes() - (0 if device.has_own_memory else num_blocks * bytes_per_block)
    return replace(
        sizes,
        num_blocks=num_blocks,
        num_host_blocks=num_host_blocks(config.cache, bytes_per_block=bytes_per_block, free_bytes=free_on_host),
    )


def _log_sizes(ready: Ready) -> None:
    tokens = ready.num_blocks * ready.block_size
    log.info(
        "engine built",
        kv_blocks=ready.num_blocks,
        kv_tokens=tokens,
        max_model_len=ready.max_model_len,
        max_num_batched_tokens=ready.max_num_batched_tokens,
    )
    if tokens < ready.max_model_len:
        log.warning(
            "the KV cache is smaller than the context: longer requests are refused",
            longest_request=ready.max_sequence_len,
            max_model_len=ready.max_model_len,
        )
