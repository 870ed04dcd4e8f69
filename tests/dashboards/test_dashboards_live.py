"""Whether there is something to see: every expression that is shipped, asked of a Prometheus that watched a server."""

import re

import pytest
from dashboards_expressions import (
    WINDOW,
    exported_name,
    link_expressions,
    panel_expressions,
    rule_expressions,
    rules,
)
from dashboards_prometheus import promtool
from dashboards_watched import Watched

from observability.instruments import Kind
from observability.metrics import INSTRUMENTS

MAY_BE_EMPTY = {
    "rule OctavoNoTarget": "absent() has data when there is no server",
    "rule OctavoServerErrors": "no request was answered with 5xx",
}
MAY_STAY_ZERO = {
    "kv_disk_errors_total": "the disk works",
    "kv_disk_corrupt_files_total": "the disk works",
    "gateway_buffered_bytes": "every client reads",
    "num_requests_expected": "it is not for long, and Prometheus looks each second",
    "num_queued_tokens": "likewise",
    "predicted_queue_wait_seconds": "likewise",
}
HAPPENED = (
    'kv_tier_hits_total{tier="host"}',
    'kv_tier_hits_total{tier="disk"}',
    'kv_blocks_copied_total{direction="out"}',
    'kv_blocks_copied_total{direction="in"}',
    'request_success_total{finished_reason="length"}',
    'request_success_total{finished_reason="abort"}',
    'request_success_total{finished_reason="deadline"}',
    'requests_refused_total{reason="tenant_requests"}',
    'deadline_misses_total{stage="running"}',
    'tenant_device_seconds_total{tenant="anna"}',
    'tenant_device_seconds_total{tenant="bert"}',
)
# What the dashboards that vLLM ships ask, and another label where theirs has one that each server sets itself.
VLLM_LABELS = '{model_name="tiny"}'
VLLM_HISTOGRAMS = (
    "e2e_request_latency_seconds",
    "inter_token_latency_seconds",
    "time_to_first_token_seconds",
    "request_time_per_output_token_seconds",
    "request_queue_time_seconds",
    "request_prefill_time_seconds",
    "request_decode_time_seconds",
    "request_inference_time_seconds",
    "request_prompt_tokens",
    "request_generation_tokens",
    "request_max_num_generation_tokens",
    "request_params_n",
    "request_params_max_tokens",
    "iteration_tokens_total",
)
VLLM_EXPRESSIONS = (
    *(
        f"histogram_quantile({share}, sum by (le) (rate(vllm:{name}_bucket{VLLM_LABELS}[{WINDOW}])))"
        for name in VLLM_HISTOGRAMS
        for share in (0.5, 0.9, 0.95, 0.99)
    ),
    *(
        f"sum(rate(vllm:{name}_sum{VLLM_LABELS}[{WINDOW}])) / sum(rate(vllm:{name}_count{VLLM_LABELS}[{WINDOW}]))"
        for name in VLLM_HISTOGRAMS
    ),
    *(f"sum by (le) (increase(vllm:{name}_bucket{VLLM_LABELS}[{WINDOW}]))" for name in VLLM_HISTOGRAMS),
    *(
        f"rate(vllm:{name}{VLLM_LABELS}[{WINDOW}])"
        for name in ("prompt_tokens_total", "generation_tokens_total", "num_preemptions_total", "request_success_total")
    ),
    *(
        f"vllm:{name}{VLLM_LABELS}"
        for name in (
            "num_requests_running",
            "num_requests_waiting",
            "num_requests_waiting_by_reason",
            "kv_cache_usage_perc",
        )
    ),
    f"sum by (finished_reason) (increase(vllm:request_success_total{VLLM_LABELS}[{WINDOW}]))",
    f"sum(rate(vllm:prefix_cache_hits_total{VLLM_LABELS}[{WINDOW}]))"
    f" / sum(rate(vllm:prefix_cache_queries_total{VLLM_LABELS}[{WINDOW}]))",
    f'sum(rate(vllm:time_to_first_token_seconds_bucket{{model_name="tiny", le="1.0"}}[{WINDOW}]))'
    f" / sum(rate(vllm:time_to_first_token_seconds_count{VLLM_LABELS}[{WINDOW}]))",
    f'sum(rate(vllm:request_time_per_output_token_seconds_bucket{{model_name="tiny", le="0.1"}}[{WINDOW}]))'
    f" / sum(rate(vllm:request_time_per_output_token_seconds_count{VLLM_LABELS}[{WINDOW}]))",
    f"sum by (handler) (rate(http_requests_total[{WINDOW}]))",
    f'sum(rate(http_requests_total{{job="vllm", status="2xx"}}[{WINDOW}]))',
    f"sum by (handler) (rate(http_request_duration_seconds_sum[{WINDOW}]))"
    f" / sum by (handler) (rate(http_request_duration_seconds_count[{WINDOW}]))",
)
# What promtool would have otherwise, and dashboards made for vLLM would not find.
COLON = "metric names should not contain ':'"
NO_COUNTER = 'iteration_tokens_total non-counter metrics should not have "_total" suffix'


def test_every_expression_has_data(watched: Watched) -> None:
    links = link_expressions('job="octavo", model_name="tiny"')
    expressions = [*panel_expressions(), *rule_expressions(), *links]
    empty = [each.place for each in expressions if not watched.values(each.promql)]
    assert {place: MAY_BE_EMPTY.get(place) for place in empty} == MAY_BE_EMPTY
    for each in expressions:
        wanted = set(re.findall(r"\{\{(\w+)\}\}", each.legend))
        assert all(wanted <= labels.keys() for labels in watched.labels(each.promql)), each


def test_every_instrument_moves(watched: Watched) -> None:
    still = set()
    for instrument in INSTRUMENTS:
        name = exported_name(instrument.name) + ("_count" if instrument.kind is Kind.HISTOGRAM else "")
        if not any(watched.values(f'max_over_time({name}{{job="octavo"}}[{WINDOW}])')):
            still.add(instrument.name)
    assert still <= MAY_STAY_ZERO.keys()
    assert [series for series in HAPPENED if not any(watched.values(f"octavo:{series}"))] == []


def test_dashboards_made_for_vllm_have_data(watched: Watched) -> None:
    assert [promql for promql in VLLM_EXPRESSIONS if not watched.values(promql)] == []


def test_our_dashboards_have_data_under_another_prefix(watched: Watched) -> None:
    expressions = [each for each in panel_expressions(prefix="vllm", job="vllm") if "job_model:" not in each.promql]
    assert [each.place for each in expressions if not watched.values(each.promql)] == []


def test_rules_are_evaluated_and_say_what_happened(watched: Watched) -> None:
    groups = watched.prometheus.get("rules")["groups"]
    found = {rule["name"]: rule for group in groups for rule in group["rules"]}
    assert found.keys() == {rule.get("record") or rule["alert"] for rule in rules()}
    assert {name: rule.get("lastError") for name, rule in found.items() if rule["health"] != "ok"} == {}
    assert found["OctavoEngineRestarted"]["state"] == "firing"
    (alert,) = found["OctavoEngineRestarted"]["alerts"]
    assert alert["annotations"]["summary"].startswith("The engine of tiny on 127.0.0.1:")
    quiet = {name for name, rule in found.items() if rule.get("state") == "inactive"}
    assert {"OctavoNotScraped", "OctavoNoTarget", "OctavoStalled", "OctavoDiskTierErrors"} <= quiet


@pytest.mark.parametrize("prefix", ["octavo", "vllm"])
def test_promtool_reads_the_metrics(watched: Watched, prefix: str) -> None:
    said = promtool("check", "metrics", text=getattr(watched, prefix))
    assert said.returncode == 3, said.stdout + said.stderr  # it read them, and has remarks
    remarks = {line for line in (said.stdout + said.stderr).splitlines() if line and not line.endswith(COLON)}
    assert remarks == {f"{prefix}:{NO_COUNTER}"}


def test_promtool_reads_the_configuration_that_ran(watched: Watched) -> None:
    said = promtool("check", "config", str(watched.prometheus.config))
    assert said.returncode == 0, said.stderr
