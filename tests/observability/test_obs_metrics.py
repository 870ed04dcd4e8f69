"""/metrics as a scraper sees it: parsed with prometheus_client's own parser."""

import math

import msgspec
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from ipc.messages import STEP_TOKEN_BUCKETS, FinishReason, Stats, WaitReason
from observability.instruments import FINISHED_REASONS, STEP_TOKENS_BUCKETS, WAIT_REASONS, Instrument, Kind
from observability.metrics import INSTRUMENTS, Metrics
from observability.request_summary import RequestSummary
from observability.request_times import RequestTimes

OWN = {"model_name": "smollm2", "engine": "0"}


def make_metrics(prefix: str = "octavo") -> Metrics:
    return Metrics(prefix, model_name="smollm2", registry=CollectorRegistry())


def samples(metrics: Metrics) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    families = text_string_to_metric_families(metrics.render().decode())
    return {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}


def read(metrics: Metrics, name: str, **labels: str) -> float:
    return samples(metrics)[name, frozenset({**OWN, **labels}.items())]


def test_every_instrument_is_exported_with_its_type_and_labels() -> None:
    metrics = make_metrics()
    metrics.observe_http("/v1/models", "GET", 200, 0.01)
    families = {f.name: f for f in text_string_to_metric_families(metrics.render().decode())}
    for instrument in INSTRUMENTS:
        name = f"octavo:{instrument.name}" if instrument.is_prefixed else instrument.name
        family = families[name.removesuffix("_total") if instrument.kind is Kind.COUNTER else name]
        assert family.type == instrument.kind
        assert family.documentation == instrument.help
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(instrument.labels)


def test_the_prefix_makes_another_servers_names() -> None:
    assert read(make_metrics("vllm"), "vllm:num_requests_running") == 0


@pytest.mark.parametrize("prefix", ["", "a b", "vllm:", "9x"])
def test_a_prefix_that_is_no_name_is_refused(prefix: str) -> None:
    with pytest.raises(ValueError, match="prefix"):
        make_metrics(prefix)


def test_names_end_in_their_unit() -> None:
    for instrument in INSTRUMENTS:
        if instrument.unit == "s":
            assert "_seconds" in instrument.name
        if instrument.kind is Kind.COUNTER:
            assert instrument.name.endswith("_total")
        assert list(instrument.buckets) == sorted(set(instrument.buckets))
        assert bool(instrument.buckets) == (instrument.kind is Kind.HISTOGRAM)


def test_latency_buckets_start_low_enough() -> None:
    by_name: dict[str, Instrument] = {instrument.name: instrument for instrument in INSTRUMENTS}
    assert by_name["inter_token_latency_seconds"].buckets[0] == 0.0005
    assert by_name["request_queue_time_seconds"].buckets[0] == 0.001
    assert by_name["request_prefill_time_seconds"].buckets[0] == 0.001


def test_the_words_are_the_wires() -> None:
    assert tuple(reason.name.lower() for reason in WaitReason) == WAIT_REASONS
    assert tuple(reason.name.lower() for reason in FinishReason) == FINISHED_REASONS
    assert STEP_TOKENS_BUCKETS == STEP_TOKEN_BUCKETS
    fields = {field.name for field in msgspec.structs.fields(Stats)}
    sources = {i.source.format(value) for i in INSTRUMENTS if i.source for value in i.values or ("",)}
    assert sources <= fields


def test_a_value_on_a_bound_belongs_to_that_bucket() -> None:
    metrics = make_metrics()
    for seconds in (0.001, 0.0010001, 100.0):
        metrics.observe_inter_token(seconds)
    name = "octavo:inter_token_latency_seconds"
    assert read(metrics, f"{name}_bucket", le="0.0005") == 0
    assert read(metrics, f"{name}_bucket", le="0.001") == 1
    assert read(metrics, f"{name}_bucket", le="0.002") == 2
    assert read(metrics, f"{name}_bucket", le="80.0") == 2
    assert read(metrics, f"{name}_bucket", le="+Inf") == 3
    assert read(metrics, f"{name}_count") == 3
    assert math.isclose(read(metrics, f"{name}_sum"), 100.0020001)


def test_a_finished_request_is_observed_in_every_phase() -> None:
    metrics = make_metrics()
    times = RequestTimes(0, 1_000_000, None, 10_000_000, 40_000_000, 41_000_000)
    metrics.observe_first_token(0.010)
    times.wait(2_000_000, "kv_blocks")
    times.admit(4_000_000)
    summary = RequestSummary(
        "stop", times, 7, 5, num_cached_tokens=4, longest_output=4, num_preemptions=2, n=2, max_tokens=9
    )
    metrics.observe_request_end(summary)
    assert read(metrics, "octavo:request_success_total", finished_reason="stop") == 1
    expected = {
        "time_to_first_token_seconds": 0.010,
        "request_queue_time_seconds": 0.003,
        "request_prefill_time_seconds": 0.006,
        "request_decode_time_seconds": 0.030,
        "e2e_request_latency_seconds": 0.041,
        "request_inference_time_seconds": 0.036,
        "request_time_per_output_token_seconds": 0.010,
        "request_prompt_tokens": 7,
        "request_prefill_kv_computed_tokens": 3,
        "request_generation_tokens": 5,
        "request_max_num_generation_tokens": 4,
        "request_num_preemptions": 2,
        "request_params_n": 2,
        "request_params_max_tokens": 9,
    }
    for name, total in expected.items():
        assert read(metrics, f"octavo:{name}_count") == 1
        assert math.isclose(read(metrics, f"octavo:{name}_sum"), total)
    for reason, seconds in (("policy", 0.001), ("kv_blocks", 0.002)):
        assert read(metrics, "octavo:request_wait_time_seconds_count", reason=reason) == 1
        assert math.isclose(read(metrics, "octavo:request_wait_time_seconds_sum", reason=reason), seconds)
    assert read(metrics, "octavo:request_wait_time_seconds_count", reason="grammar") == 0
    assert read(metrics, "octavo:prompt_tokens_cached_total") == 4


def test_a_client_that_left_the_queue_counts_as_abort_with_its_wait() -> None:
    metrics = make_metrics()
    times = RequestTimes(0, queued_ns=1_000_000, end_ns=3_001_000_000)
    metrics.observe_request_end(RequestSummary("abort", times, 7, 0))
    assert read(metrics, "octavo:request_success_total", finished_reason="abort") == 1
    assert math.isclose(read(metrics, "octavo:request_queue_time_seconds_sum"), 3.0)
    for name in ("prefill_time_seconds", "inference_time_seconds", "prefill_kv_computed_tokens"):
        assert read(metrics, f"octavo:request_{name}_count") == 0
    assert read(metrics, "octavo:request_wait_time_seconds_sum", reason="policy") == 3.0


@pytest.mark.parametrize(("admitted_ns", "stage"), [(None, "queued"), (2_000_000, "running")])
def test_a_missed_deadline_counts_by_how_far_the_request_was(admitted_ns: int | None, stage: str) -> None:
    metrics = make_metrics()
    times = RequestTimes(0, queued_ns=1_000_000, admitted_ns=admitted_ns, end_ns=3_000_000)
    metrics.observe_request_end(RequestSummary("stop", times, 7, 0, n=2, has_missed_deadline=True))
    counts = {name: read(metrics, "octavo:deadline_misses_total", stage=name) for name in ("queued", "running")}
    assert counts == {"queued": 0, "running": 0} | {stage: 1}


def test_an_unknown_reason_is_an_error_of_ours() -> None:
    with pytest.raises(KeyError):
        make_metrics().observe_request_end(RequestSummary("done", RequestTimes(0, end_ns=1), 1, 1))


def test_http_methods_that_a_client_made_up_share_one_label() -> None:
    metrics = make_metrics()
    for method in ("GET", "BREW", "WHEN"):
        metrics.observe_http("/v1/models", method, 405, 0.01)
    found = samples(metrics)
    http = {key: value for key, value in found.items() if key[0] == "http_requests_total"}
    assert http == {
        ("http_requests_total", frozenset({("handler", "/v1/models"), ("method", "GET"), ("status", "4xx")})): 1,
        ("http_requests_total", frozenset({("handler", "/v1/models"), ("method", "other"), ("status", "4xx")})): 2,
    }


def test_restarts_are_counted() -> None:
    metrics = make_metrics()
    metrics.count_engine_restart(0)
    assert read(metrics, "octavo:engine_restarts_total") == 1


def test_a_registry_of_its_own_tells_about_the_process() -> None:
    assert b"process_resident_memory_bytes" in Metrics(model_name="m").render()
