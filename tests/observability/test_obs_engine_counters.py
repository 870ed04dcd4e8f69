"""Counters over the life and death of engines, against a plain sum over incarnations."""

import math

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from ipc.messages import STAGE_NS_BUCKETS, STEP_SEQUENCE_BUCKETS, STEP_TOKEN_BUCKETS, Stats, WaitReason
from observability.instruments import STAGE_BUCKETS, STAGES, STEP_SEQUENCES_BUCKETS, STEP_TOKENS_BUCKETS
from observability.metrics import Metrics


class Scraped:
    """Metrics that are fed with the wire's reports and read through their registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.metrics = Metrics(model_name="m", registry=self.registry)

    def report(self, stats: Stats) -> None:
        self.metrics.engine.update(
            stats.incarnation,
            msgspec.structs.asdict(stats),
            waiting_by_reason={WaitReason(reason).name.lower(): count for reason, count in stats.waiting_by_reason},
        )

    def read(self, name: str, **labels: str) -> float:
        value = self.registry.get_sample_value(f"octavo:{name}", {"model_name": "m", "engine": "0", **labels})
        assert value is not None
        return value


def busy(incarnation: int, count: int) -> Stats:
    """A report in which every counter is ``count``, and 4 of 16 blocks are in use."""
    return Stats(
        incarnation=incarnation,
        time_ns=0,
        num_running=2,
        num_waiting=3,
        num_blocks=16,
        num_free_blocks=12,
        prompt_tokens=count,
        generation_tokens=count,
        prefix_cache_queries=count,
        prefix_cache_hits=count,
        preemptions=count,
        steps=count,
        schedule_ns=count,
        launch_ns=count,
        wait_ns=count,
        commit_ns=count,
        step_tokens=(count,) * (len(STEP_TOKEN_BUCKETS) + 1),
        step_tokens_sum=count,
        **{f"{stage}_steps": (count,) * (len(STAGE_NS_BUCKETS) + 1) for stage in STAGES},
        waiting_by_reason=((WaitReason.KV_BLOCKS, 3),),
    )


COUNTERS = (
    "prompt_tokens_total",
    "generation_tokens_total",
    "prefix_cache_queries_total",
    "prefix_cache_hits_total",
    "num_preemptions_total",
    "steps_total",
    "iteration_tokens_total_sum",
)
GAUGES = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")


def test_what_became_of_kv_is_told_by_kind_direction_and_tier() -> None:
    scraped = Scraped()
    stats = Stats(
        incarnation=0,
        time_ns=0,
        preemptions_swap=1,
        preemptions_recompute=2,
        kv_blocks_out=3,
        kv_blocks_in=4,
        kv_hits_host=5,
        kv_hits_disk=6,
        num_host_blocks=7,
        num_used_host_blocks=8,
        kv_disk_bytes=9,
        kv_disk_corrupt_files=10,
        kv_disk_errors=11,
        kv_evictions_device_full=12,
        kv_evictions_host_full=13,
        kv_evictions_disk_full=14,
    )
    scraped.report(stats)
    assert [scraped.read("preemptions_by_kind_total", kind=kind) for kind in ("swap", "recompute")] == [1, 2]
    assert [scraped.read("kv_blocks_copied_total", direction=name) for name in ("out", "in")] == [3, 4]
    assert [scraped.read("kv_tier_hits_total", tier=tier) for tier in ("host", "disk")] == [5, 6]
    reasons = ("device_full", "host_full", "disk_full")
    assert [scraped.read("kv_block_evictions_total", reason=reason) for reason in reasons] == [12, 13, 14]
    names = ("kv_host_blocks", "kv_host_blocks_used", "kv_disk_bytes")
    assert [scraped.read(name) for name in (*names, "kv_disk_corrupt_files_total", "kv_disk_errors_total")] == [
        *(7, 8, 9),
        *(10, 11),
    ]


def test_one_report_is_shown_as_it_is() -> None:
    scraped = Scraped()
    scraped.report(busy(0, 5))
    assert {name: scraped.read(name) for name in COUNTERS} == dict.fromkeys(COUNTERS, 5)
    assert [scraped.read(name) for name in GAUGES] == [2, 3, 0.25]
    assert scraped.read("num_requests_waiting_by_reason", reason="kv_blocks") == 3
    assert scraped.read("num_requests_waiting_by_reason", reason="grammar") == 0
    for stage in STAGES:
        assert scraped.read("step_stage_seconds_bucket", stage=stage, le="2e-05") == 10
        assert math.isclose(scraped.read("step_stage_seconds_sum", stage=stage), 5e-9)
    assert scraped.read("iteration_tokens_total_bucket", le="1.0") == 5
    assert scraped.read("iteration_tokens_total_bucket", le="4.0") == 15
    assert scraped.read("iteration_tokens_total_count") == 5 * (len(STEP_TOKEN_BUCKETS) + 1)


def test_a_dead_engine_keeps_its_counts_and_loses_its_gauges() -> None:
    scraped = Scraped()
    scraped.report(busy(0, 5))
    for _ in range(2):
        scraped.metrics.engine.end(0)
        assert scraped.read("prompt_tokens_total") == 5
        assert [scraped.read(name) for name in GAUGES] == [0, 0, 0]
        assert scraped.read("num_requests_waiting_by_reason", reason="kv_blocks") == 0


def test_a_reason_that_nobody_waits_for_any_more_goes_to_zero() -> None:
    scraped = Scraped()
    scraped.report(busy(0, 5))
    scraped.report(msgspec.structs.replace(busy(0, 6), num_waiting=0, waiting_by_reason=()))
    assert scraped.read("num_requests_waiting_by_reason", reason="kv_blocks") == 0


def test_a_report_of_a_dead_engine_that_comes_late_is_dropped() -> None:
    scraped = Scraped()
    scraped.report(busy(0, 5))
    scraped.metrics.engine.end(0)
    scraped.report(busy(0, 9))
    scraped.report(busy(1, 2))
    scraped.report(busy(0, 50))
    assert scraped.read("prompt_tokens_total") == 7


def test_an_engine_without_blocks_yet_uses_none() -> None:
    scraped = Scraped()
    scraped.report(Stats(incarnation=0, time_ns=0))
    assert scraped.read("kv_cache_usage_perc") == 0


def test_a_report_of_the_wrong_shape_is_an_error() -> None:
    engine = Metrics(model_name="m", registry=CollectorRegistry()).engine
    with pytest.raises(KeyError):
        engine.update(0, {"num_running": 1})
    values = msgspec.structs.asdict(busy(0, 1))
    with pytest.raises(ValueError, match="zip"):
        engine.update(0, values | {"step_tokens": (1, 2)})
    with pytest.raises(ValueError, match="weather"):
        engine.update(0, values, waiting_by_reason={"weather": 1})


def test_the_wires_buckets_are_the_tables() -> None:
    assert STEP_TOKENS_BUCKETS == STEP_TOKEN_BUCKETS
    assert STEP_SEQUENCES_BUCKETS == STEP_SEQUENCE_BUCKETS
    assert tuple(bound / 1e9 for bound in STAGE_NS_BUCKETS) == STAGE_BUCKETS


incarnations = st.lists(
    st.tuples(st.lists(st.integers(0, 10**12), max_size=5).map(sorted), st.booleans()), min_size=1, max_size=6
)


@settings(deadline=None)
@given(incarnations)
def test_counters_never_fall_and_end_at_the_sum_over_incarnations(lives: list[tuple[list[int], bool]]) -> None:
    scraped = Scraped()
    before = dict.fromkeys(COUNTERS, 0.0)
    for incarnation, (counts, is_end_told) in enumerate(lives):
        for count in counts:
            scraped.report(busy(incarnation, count))
            now = {name: scraped.read(name) for name in COUNTERS}
            assert all(now[name] >= before[name] for name in COUNTERS)
            before = now
        if is_end_told:
            scraped.metrics.engine.end(incarnation)
            assert {name: scraped.read(name) for name in COUNTERS} == before
    total = sum(counts[-1] for counts, _ in lives if counts)
    assert before == dict.fromkeys(COUNTERS, total)
    assert scraped.read("iteration_tokens_total_bucket", le="1.0") == total
