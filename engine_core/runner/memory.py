"""How many KV blocks there is memory for, on the device and on the host. All sizes in bytes."""

from ipc.config import CacheConfig
from ipc.errors import ConfigError

CPU_SHARE, CPU_MOST = 4, 4 * 1024**3  # a quarter of what is free, at most 4 GiB


def cpu_kv_memory(free_bytes: int) -> int:
    """For the KV cache, where the system's memory holds it and others want some, too."""
    return min(free_bytes // CPU_SHARE, CPU_MOST)


def gpu_kv_memory(*, share: float, free_at_start: int, free_now: int, step_bytes: int) -> int:
    """For the KV cache: the ``share`` of what was free before the weights were loaded, without them and without what
    the largest step takes. Not below 0."""
    return max(0, min(int(share * free_at_start) - (free_at_start - free_now), free_now) - step_bytes)


def num_kv_blocks(config: CacheConfig, *, bytes_per_block: int, free_bytes: int, memory: int, most: int) -> int:
    """Blocks in the pool: as configured, which must fit into ``free_bytes``, else what ``memory`` holds, but no more
    than ``most`` (what all sequences together could use). Raises ConfigError when not even one fits."""
    if config.num_kv_blocks is not None:
        wanted = config.num_kv_blocks * bytes_per_block
        if wanted > free_bytes:
            raise ConfigError(
                f"--num-kv-blocks {config.num_kv_blocks} needs {wanted >> 20} MiB, {free_bytes >> 20} MiB are free: "
                f"{free_bytes // bytes_per_block} blocks would fit"
            )
        return config.num_kv_blocks
    if config.kv_cache_memory_bytes is not None:
        if config.kv_cache_memory_bytes > free_bytes:
            raise ConfigError(
                f"--kv-cache-memory-bytes {config.kv_cache_memory_bytes} is more than the {free_bytes} bytes free"
            )
        memory = config.kv_cache_memory_bytes
    blocks = min(memory // bytes_per_block, most)
    if blocks < 1:
        raise ConfigError(
            f"{memory} bytes for the KV cache hold no block of {bytes_per_block} bytes: "
            "raise --kv-cache-memory-bytes or lower --block-size"
        )
    return blocks


def check_longest_sequence(num_blocks: int, block_size: int, max_model_len: int, device_name: str) -> None:
    """Raises ConfigError when one sequence of ``max_model_len`` tokens does not fit."""
    if num_blocks * block_size < max_model_len:
        raise ConfigError(
            f"{device_name} has memory for a KV cache of {num_blocks * block_size} tokens, one sequence may have "
            f"{max_model_len}: --max-model-len {num_blocks * block_size} would fit; so would more with "
            "--kv-cache-dtype int8, --quantization int8 or a higher --gpu-memory-utilization"
        )


def num_host_blocks(config: CacheConfig, *, bytes_per_block: int, free_bytes: int) -> int:
    """Blocks in the host tier, of which there may be none. Raises ConfigError when the memory is not free, or too
    little for a block."""
    memory = config.kv_host_memory_bytes
    if memory > free_bytes:
        raise ConfigError(f"--kv-host-memory-bytes {memory} is more than the {free_bytes} bytes free")
    if 0 < memory < bytes_per_block:
        raise ConfigError(f"--kv-host-memory-bytes {memory} holds no block of {bytes_per_block} bytes")
    return memory // bytes_per_block
