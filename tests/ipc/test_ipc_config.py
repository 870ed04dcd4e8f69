"""The configuration tree refuses what is out of range, by name."""

import msgspec
import pytest
from msgspec import Struct

from ipc.config import CacheConfig, EngineConfig, GatewayConfig, ModelConfig, SchedulerConfig, TransportConfig

REQUIRED: dict[type[Struct], dict[str, object]] = {
    ModelConfig: {"model": "m"},
    TransportConfig: {"endpoint": "ipc:///x"},
    EngineConfig: {"model": {"model": "m"}, "transport": {"endpoint": "ipc:///x"}},
    CacheConfig: {},
    SchedulerConfig: {},
    GatewayConfig: {},
}


@pytest.mark.parametrize("kind", REQUIRED)
def test_what_is_required_is_enough(kind: type[Struct]) -> None:
    msgspec.convert(REQUIRED[kind], kind)
    if REQUIRED[kind]:
        with pytest.raises(msgspec.ValidationError, match="missing required field"):
            msgspec.convert({}, kind)


@pytest.mark.parametrize("kind", REQUIRED)
def test_unknown_fields_are_refused(kind: type[Struct]) -> None:
    with pytest.raises(msgspec.ValidationError, match="unknown field `colour`"):
        msgspec.convert({**REQUIRED[kind], "colour": "red"}, kind)


@pytest.mark.parametrize("kind", REQUIRED)
def test_a_configuration_does_not_change(kind: type[Struct]) -> None:
    config = msgspec.convert(REQUIRED[kind], kind)
    with pytest.raises(AttributeError):
        setattr(config, next(iter(kind.__struct_fields__)), None)


@pytest.mark.parametrize(
    ("kind", "field", "good", "bad"),
    [
        (ModelConfig, "dtype", ["auto", "float32", "bfloat16"], ["float16", "", None]),
        (ModelConfig, "load_format", ["auto", "dummy"], ["pickle"]),
        (ModelConfig, "device", ["auto", "cpu", "cuda"], ["tpu"]),
        (ModelConfig, "seed", [0, 2**63 - 1], [-1, 2**63, 1.5, "1"]),
        (ModelConfig, "max_logprobs", [0, 1000], [-1, 1001]),
        (ModelConfig, "max_model_len", [None, 1], ["8k", 1.5]),
        (CacheConfig, "block_size", [16, 32, 64, 128], [0, 8, 17, 256, "16"]),
        (CacheConfig, "gpu_memory_utilization", [0.01, 1.0, 1], [0.0, 1.01, -0.5]),
        (CacheConfig, "enable_prefix_caching", [True, False], ["yes", 1]),
        (CacheConfig, "num_kv_blocks", [None, 1], ["many"]),
        (CacheConfig, "preemption_mode", ["auto", "recompute", "swap"], ["drop", None]),
        (CacheConfig, "kv_host_memory_bytes", [0, 1], [-1, None]),
        (CacheConfig, "kv_disk_path", [None, "kv"], [5]),
        (SchedulerConfig, "max_num_seqs", [1, 65536], [0, -1, 65537, None]),
        (SchedulerConfig, "max_num_batched_tokens", [None, 1], ["many"]),
        (SchedulerConfig, "async_scheduling", [None, True, False], ["auto"]),
        (GatewayConfig, "port", [0, 65535], [-1, 65536]),
        (GatewayConfig, "max_request_bytes", [1024], [1023, 0]),
        (GatewayConfig, "shutdown_timeout", [0.0, 5], [-0.1]),
        (GatewayConfig, "log_level", ["debug", "info", "warning", "error"], ["loud"]),
        (GatewayConfig, "generation_config", ["auto", "none"], ["vllm"]),
        (TransportConfig, "incarnation", [0, 7], ["one"]),
    ],
)
def test_ranges(kind: type[Struct], field: str, good: list[object], bad: list[object]) -> None:
    for value in good:
        assert getattr(msgspec.convert({**REQUIRED[kind], field: value}, kind), field) == value
    for value in bad:
        with pytest.raises(msgspec.ValidationError, match=rf"\$\.{field}"):
            msgspec.convert({**REQUIRED[kind], field: value}, kind)


def test_an_engine_reads_what_the_supervisor_writes() -> None:
    config = EngineConfig(
        model=ModelConfig(model="m", dtype="float32"),
        cache=CacheConfig(block_size=32, num_kv_blocks=7),
        scheduler=SchedulerConfig(max_num_seqs=3, async_scheduling=True),
        transport=TransportConfig(endpoint="tcp://x:1", incarnation=2, server_secret_key="s", server_public_key="p"),
        log_level="debug",
    )
    assert msgspec.json.decode(msgspec.json.encode(config), type=EngineConfig) == config


def test_a_priority_counts_under_its_policy_and_under_those_that_are_not_ours() -> None:
    names = ("fcfs", "short-first", "short_first", "deadline", "fair", "priority", "somebody-elses")
    assert [SchedulerConfig(scheduling_policy=name).looks_at_priority for name in names] == [False] * 5 + [True] * 2
