"""How many KV blocks there are memory for, on the device and on the host. All sizes in bytes."""

from ipc.config import CacheConfig
from ipc.errors import ConfigError

CPU_SHARE, CPU_MOST = 4, 4 * 1024**3  # a quarter of what is free, at most 4 GiB


def num_kv_blocks(config: CacheConfig, *, bytes_per_block: int, free_bytes: int, is_gpu: bool, most: int) -> int:
    """Blocks in the pool: as configured, else what the memory holds, but no more than ``most`` (what all sequences
    together could use). Raises ConfigError when not even one fits."""
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
    elif is_gpu:
        memory = int(free_bytes * config.gpu_memory_utilization)
    else:
        memory = min(free_bytes // CPU_SHARE, CPU_MOST)
    blocks = min(memory // bytes_per_block, most)
    if blocks < 1:
        raise ConfigError(
            f"{memory} bytes for the KV cache hold no block of {bytes_per_block} bytes: "
            "raise --kv-cache-memory-bytes or lower --block-size"
        )
    return blocks


def num_host_blocks(config: CacheConfig, *, bytes_per_block: int, free_bytes: int) -> int:
    """Blocks in the host tier, of which there may be none. Raises ConfigError when the memory is not free, or too
    little for a block."""
    memory = config.kv_host_memory_bytes
    if memory > free_bytes:
        raise ConfigError(f"--kv-host-memory-bytes {memory} is more than the {free_bytes} bytes free")
    if 0 < memory < bytes_per_block:
        raise ConfigError(f"--kv-host-memory-bytes {memory} holds no block of {bytes_per_block} bytes")
    return memory // bytes_per_block
