"""How many blocks the host's memory holds."""

import pytest

from engine_core.runner.memory import num_host_blocks
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
