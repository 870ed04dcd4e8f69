"""How many blocks there is memory for."""

import pytest

from engine_core.runner.memory import (
    check_longest_sequence,
    cpu_kv_memory,
    gpu_kv_memory,
    num_host_blocks,
    num_kv_blocks,
)
from ipc.config import CacheConfig
from ipc.errors import ConfigError


@pytest.mark.parametrize(("memory", "blocks"), [(0, 0), (100, 1), (199, 1), (200, 2), (1000, 10)])
def test_as_many_as_the_memory_holds(memory: int, blocks: int) -> None:
    config = CacheConfig(kv_host_memory_bytes=memory)
    assert num_host_blocks(config, bytes_per_block=100, free_bytes=1000) == blocks


@pytest.mark.parametrize(("memory", "problem"), [(1001, "more than the 1000 bytes free"), (99, "holds no block")])
def test_what_cannot_be_is_refused_by_name(memory: int, problem: str) -> None:
    with pytest.raises(ConfigError, match=f"--kv-host-memory-bytes.*{problem}"):
        num_host_blocks(CacheConfig(kv_host_memory_bytes=memory), bytes_per_block=100, free_bytes=1000)


GIB = 2**30


@pytest.mark.parametrize(
    ("free_now", "step_bytes", "expected"),
    [(60, 4, 90 - 40 - 4), (100, 0, 90), (60, 50, 0), (60, 49, 1), (2, 1, 0), (10, 3, 0)],
)
def test_a_gpu_s_share_is_for_weights_and_the_largest_step_too(free_now: int, step_bytes: int, expected: int) -> None:
    assert gpu_kv_memory(share=0.9, free_at_start=100, free_now=free_now, step_bytes=step_bytes) == expected


@pytest.mark.parametrize(("free", "expected"), [(8 * GIB, 2 * GIB), (100 * GIB, 4 * GIB), (0, 0)])
def test_on_the_cpu_a_quarter_and_not_too_much(free: int, expected: int) -> None:
    assert cpu_kv_memory(free) == expected


@pytest.mark.parametrize(
    ("config", "blocks"),
    [
        (CacheConfig(), 5),
        (CacheConfig(num_kv_blocks=7), 7),
        (CacheConfig(kv_cache_memory_bytes=399), 3),
        (CacheConfig(kv_cache_memory_bytes=1000), 9),
    ],
)
def test_as_many_kv_blocks_as_said_or_as_fit(config: CacheConfig, blocks: int) -> None:
    assert num_kv_blocks(config, bytes_per_block=100, free_bytes=1000, memory=599, most=9) == blocks


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        (CacheConfig(num_kv_blocks=11), "--num-kv-blocks 11 .*10 blocks would fit"),
        (CacheConfig(kv_cache_memory_bytes=1001), "--kv-cache-memory-bytes 1001 is more than the 1000"),
        (CacheConfig(kv_cache_memory_bytes=99), "99 bytes .* hold no block"),
    ],
)
def test_kv_blocks_that_do_not_fit_are_refused_by_name(config: CacheConfig, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        num_kv_blocks(config, bytes_per_block=100, free_bytes=1000, memory=599, most=9)


def test_what_a_sequence_needs_is_said() -> None:
    check_longest_sequence(4, 16, 64, "NVIDIA X")
    with pytest.raises(ConfigError, match="NVIDIA X has memory for .* 64 tokens.* 65: --max-model-len 64 would fit"):
        check_longest_sequence(4, 16, 65, "NVIDIA X")
