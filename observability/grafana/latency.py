"""How quickly requests are served, whether that keeps the objectives, and what they waited for."""

from observability.grafana.board import (
    COUNT,
    REQUESTS,
    SECONDS,
    SHARE,
    Dashboard,
    Query,
    Row,
    graph,
    heatmap,
    mean,
    quantile,
    quantiles,
    stat,
)

PHASES = ("queue", "prefill", "decode")


def share_within(histogram: str, slo: str, interval: str = "$i") -> str:
    """Of what the histogram saw, what took no longer than the variable ``slo`` says: a bound of its buckets."""
    good = f'sum(rate({histogram}_bucket{{$s, le="${slo}"}}[{interval}]))'
    return f"{good} / sum(rate({histogram}_count{{$s}}[{interval}]))"


FIRST_TOKEN = "octavo:time_to_first_token_seconds"
PER_TOKEN = "octavo:request_time_per_output_token_seconds"
WHOLE = "octavo:e2e_request_latency_seconds"
OBJECTIVE = ((0.95, "yellow"), (0.99, "green"))

NOW = Row(
    "In the time shown",
    (
        stat(
            "TTFT within objective",
            share_within(FIRST_TOKEN, "ttft_slo", "$__range"),
            SHARE,
            width=4,
            most=1,
            decimals=2,
            note="First tokens within the objective chosen above. Refused requests have none.",
            thresholds=OBJECTIVE,
            base="red",
        ),
        stat(
            "TPOT within objective",
            share_within(PER_TOKEN, "tpot_slo", "$__range"),
            SHARE,
            width=4,
            most=1,
            decimals=2,
            note="Requests whose mean time between two tokens is within the objective.",
            thresholds=OBJECTIVE,
            base="red",
        ),
        stat("TTFT p95", quantile(0.95, FIRST_TOKEN), SECONDS, width=4, thresholds=((1, "yellow"), (5, "red"))),
        stat("TPOT p95", quantile(0.95, PER_TOKEN), SECONDS, width=4, thresholds=((0.1, "yellow"), (0.5, "red"))),
        stat("E2E p95", quantile(0.95, WHOLE), SECONDS, width=4),
        stat(
            "Deadline misses",
            "sum(increase(octavo:deadline_misses_total{$s}[$__range]))",
            COUNT,
            width=4,
            decimals=0,
            thresholds=((0.5, "yellow"),),
        ),
    ),
)

OBJECTIVES = Row(
    "Objectives",
    (
        graph(
            "Share within the objectives",
            SHARE,
            Query(share_within(FIRST_TOKEN, "ttft_slo"), "TTFT within $ttft_slo s"),
            Query(share_within(PER_TOKEN, "tpot_slo"), "TPOT within $tpot_slo s"),
            most=1,
            width=12,
        ),
        graph(
            "TTFT error budget: how fast it burns",
            COUNT,
            *(
                Query(f"job_model:octavo_ttft_slow:ratio_rate{window}{{$m}} / 0.01", f"{window} {{{{model_name}}}}")
                for window in ("5m", "30m", "1h", "6h")
            ),
            note="1: just what an objective of 99 % within 1 s allows. The alerts fire at 14.4 (1 h and 5 m) and 6 "
            "(6 h and 30 m). Needs observability/prometheus/recording.yaml, whose 1 s is fixed.",
            width=12,
            decimals=1,
            thresholds=((6, "yellow"), (14.4, "red")),
            lines=True,
        ),
    ),
)

TOKEN_TIMES = Row(
    "Tokens",
    (
        graph(
            "Time to first token",
            SECONDS,
            *quantiles(FIRST_TOKEN),
            note="From arrival at the gateway.",
        ),
        graph(
            "Inter-token latency",
            SECONDS,
            *quantiles("octavo:inter_token_latency_seconds"),
            note="Between two outputs of a sequence, each counted.",
        ),
        graph(
            "Time per output token",
            SECONDS,
            *quantiles(PER_TOKEN),
            note="Of each request the mean, from its first to its last token.",
        ),
        heatmap("Time to first token", FIRST_TOKEN, SECONDS),
        heatmap("Inter-token latency", "octavo:inter_token_latency_seconds", SECONDS),
        heatmap("Time per output token", PER_TOKEN, SECONDS),
    ),
)

REQUEST_TIMES = Row(
    "Requests",
    (
        graph(
            "From arrival to the end",
            SECONDS,
            *quantiles(WHOLE),
        ),
        heatmap("From arrival to the end", WHOLE, SECONDS),
        graph(
            "Mean time by phase",
            SECONDS,
            *tuple(Query(mean(f"octavo:request_{phase}_time_seconds"), phase) for phase in PHASES),
            note="queue: until first admitted. prefill: until the first token. decode: until the last.",
            is_stacked=True,
        ),
        *(
            graph(
                f"{phase.capitalize()} time",
                SECONDS,
                *quantiles(f"octavo:request_{phase}_time_seconds"),
            )
            for phase in PHASES
        ),
        graph(
            "Time in the engine",
            SECONDS,
            *quantiles("octavo:request_inference_time_seconds"),
            note="From first admission to the last token.",
        ),
        graph(
            "HTTP requests by route, mean",
            SECONDS,
            Query(
                "sum by (handler) (rate(http_request_duration_seconds_sum{$h}[$i])) "
                "/ sum by (handler) (rate(http_request_duration_seconds_count{$h}[$i]))",
                "{{handler}}",
            ),
            note="From the request's head to the response's end.",
        ),
        graph(
            "HTTP requests by route, p95",
            SECONDS,
            Query(
                quantile(0.95, "http_request_duration_seconds", "$h", "handler"),
                "{{handler}}",
            ),
        ),
    ),
)

WAITS = Row(
    "What they waited for",
    (
        graph(
            "Waiting, by reason",
            COUNT,
            Query("sum by (reason) (octavo:num_requests_waiting_by_reason{$s})", "{{reason}}"),
            note="token_budget: steps are full. kv_blocks: no KV blocks. sequence_slots: --max-num-seqs. policy: the "
            "scheduling policy holds them. grammar: it is compiled. fork, kv_disk: KV is copied or read.",
            is_stacked=True,
        ),
        graph(
            "Wait of a request, by reason",
            SECONDS,
            Query(
                "sum by (reason) (rate(octavo:request_wait_time_seconds_sum{$s}[$i])) "
                "/ scalar(sum(rate(octavo:request_success_total{$s}[$i])))",
                "{{reason}}",
            ),
            note="Time in the queue, divided by the requests that ended.",
            is_stacked=True,
        ),
        graph(
            "Wait by reason, p95",
            SECONDS,
            Query(
                quantile(0.95, "octavo:request_wait_time_seconds", by="reason"),
                "{{reason}}",
            ),
            note="Of the requests that waited for it at all; no line for a reason that none had.",
        ),
        graph(
            "Deadline misses by stage",
            REQUESTS,
            Query("sum by (stage) (rate(octavo:deadline_misses_total{$s}[$i]))", "{{stage}}"),
            note="How far a request was when its deadline passed, or could no longer be met. Zero unless clients send "
            "deadlines (deadline_ms, X-Request-Timeout).",
            is_stacked=True,
            width=12,
        ),
        graph(
            "Predicted queue wait",
            SECONDS,
            Query(
                "max by (instance, model_name) (octavo:predicted_queue_wait_seconds{$s})", "{{instance}} {{model_name}}"
            ),
            note="What a short request that came now would wait.",
            width=12,
            thresholds=((30, "yellow"), (60, "red")),
            lines=True,
        ),
    ),
)

LATENCY = Dashboard(
    "octavo-latency",
    "octavo: latency and SLO",
    __doc__.strip(),
    (NOW, OBJECTIVES, TOKEN_TIMES, REQUEST_TIMES, WAITS),
)
