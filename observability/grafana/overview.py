"""The first look: is it up, how much does it do, how quickly, and what goes wrong."""

from observability.grafana.board import (
    COUNT,
    REQUESTS,
    SECONDS,
    SHARE,
    TOKENS,
    Dashboard,
    Query,
    Row,
    graph,
    heatmap,
    quantile,
    quantiles,
    stat,
)

HIT_RATE = "sum(rate(octavo:prefix_cache_hits_total{$s}[$i])) / sum(rate(octavo:prefix_cache_queries_total{$s}[$i]))"
ANSWERS = 'http_requests_total{$h, handler!~"/health.*"'  # which answers 503 on purpose
SERVER_ERRORS = f'(sum(rate({ANSWERS}, status="5xx"}}[$i])) or vector(0)) / sum(rate({ANSWERS}}}[$i]))'

NOW = Row(
    "Now",
    (
        stat(
            "Servers up",
            "sum(up{$h})",
            note="Servers that Prometheus could scrape.",
            thresholds=((1, "green"),),
            base="red",
        ),
        stat("Servers down", "count(up{$h} == 0) or vector(0)", thresholds=((1, "red"),)),
        stat("Requests", "sum(rate(octavo:request_success_total{$s}[$i]))", REQUESTS, note="Ended, for any reason."),
        stat("Output", "sum(rate(octavo:generation_tokens_total{$s}[$i]))", TOKENS),
        stat("Input", "sum(rate(octavo:prompt_tokens_total{$s}[$i]))", TOKENS, note="Prompt tokens, cached ones too."),
        stat(
            "TTFT p95",
            quantile(0.95, "octavo:time_to_first_token_seconds"),
            SECONDS,
            thresholds=((1, "yellow"), (5, "red")),
        ),
        stat(
            "ITL p95",
            quantile(0.95, "octavo:inter_token_latency_seconds"),
            SECONDS,
            thresholds=((0.1, "yellow"), (0.5, "red")),
        ),
        stat("HTTP 5xx", SERVER_ERRORS, SHARE, note="Of all answers.", thresholds=((0.001, "yellow"), (0.01, "red"))),
        stat("Running", "sum(octavo:num_requests_running{$s})", note="Requests in the batch."),
        stat("Waiting", "sum(octavo:num_requests_waiting{$s})", note="Requests that wait for the engine."),
        stat("In flight", "sum(octavo:num_requests_in_flight{$s})", note="Admitted sequences; n counts n."),
        stat(
            "KV usage",
            "max(octavo:kv_cache_usage_perc{$s})",
            SHARE,
            note="Of the fullest engine.",
            most=1,
            thresholds=((0.9, "yellow"), (0.98, "red")),
        ),
        stat("Prefix hits", HIT_RATE, SHARE, note="Prompt tokens that the prefix cache had.", most=1),
        stat(
            "Refused",
            "sum(rate(octavo:requests_refused_total{$s}[$i]))",
            REQUESTS,
            note="429: clients are told when to come again.",
            thresholds=((0.01, "yellow"), (1, "red")),
        ),
        stat(
            "Restarts",
            "sum(increase(octavo:engine_restarts_total{$s}[$__range]))",
            COUNT,
            decimals=0,
            note="Engine processes started anew in the time shown.",
            thresholds=((0.5, "yellow"), (2.5, "red")),
        ),
        stat(
            "Alerts",
            'count(ALERTS{alertname=~"Octavo.*", alertstate="firing"}) or vector(0)',
            note="Firing rules of observability/prometheus/alerts.yaml, of all servers.",
            thresholds=((1, "red"),),
        ),
    ),
)

TRAFFIC = Row(
    "Traffic",
    (
        graph(
            "Ended requests by reason",
            REQUESTS,
            Query("sum by (finished_reason) (rate(octavo:request_success_total{$s}[$i]))", "{{finished_reason}}"),
            note="abort: the client left. deadline: its deadline passed. error: the engine failed on it.",
            is_stacked=True,
        ),
        graph(
            "Tokens",
            TOKENS,
            Query("sum(rate(octavo:prompt_tokens_total{$s}[$i]))", "input"),
            Query("sum(rate(octavo:prompt_tokens_cached_total{$s}[$i]))", "input, cached"),
            Query("sum(rate(octavo:generation_tokens_total{$s}[$i]))", "output"),
        ),
        graph(
            "Requests in the engine",
            COUNT,
            Query("sum(octavo:num_requests_running{$s})", "running"),
            Query("sum(octavo:num_requests_waiting{$s})", "waiting"),
            is_stacked=True,
        ),
    ),
)

LATENCY = Row(
    "Latency",
    (
        graph(
            "Time to first token",
            SECONDS,
            *quantiles("octavo:time_to_first_token_seconds"),
            note="From arrival.",
        ),
        graph(
            "Inter-token latency",
            SECONDS,
            *quantiles("octavo:inter_token_latency_seconds"),
            note="Between two outputs of a sequence.",
        ),
        graph(
            "Whole requests",
            SECONDS,
            *quantiles("octavo:e2e_request_latency_seconds"),
            note="From arrival to the end.",
        ),
    ),
)

SATURATION = Row(
    "Saturation",
    (
        graph(
            "KV usage",
            SHARE,
            Query(
                "max by (instance, model_name, engine) (octavo:kv_cache_usage_perc{$s})",
                "{{instance}} {{model_name}} {{engine}}",
            ),
            note="Blocks that a request holds. Full for long: requests wait or are preempted.",
            most=1,
            thresholds=((0.9, "yellow"), (0.98, "red")),
            lines=True,
        ),
        graph(
            "Prefix cache hit rate",
            SHARE,
            Query(HIT_RATE, "of prompt tokens"),
            note="Nothing to show with --no-enable-prefix-caching, and while there are no prompts.",
            most=1,
        ),
        graph(
            "Predicted queue wait",
            SECONDS,
            Query(
                "max by (instance, model_name) (octavo:predicted_queue_wait_seconds{$s})", "{{instance}} {{model_name}}"
            ),
            note="What a short request that came now would wait. Admission refuses above --max-queue-wait (60 s).",
            thresholds=((30, "yellow"), (60, "red")),
            lines=True,
        ),
        graph(
            "Admission",
            COUNT,
            Query("sum(octavo:num_requests_in_flight{$s})", "in flight"),
            Query("sum(octavo:num_requests_expected{$s})", "refused, expected again"),
            note="In flight counts n for a request with n choices, up to --max-num-queued-reqs (256).",
            width=12,
        ),
        graph(
            "Queued prompt tokens",
            COUNT,
            Query("sum(octavo:num_queued_tokens{$s})", "tokens, estimated"),
            note="Prompt tokens of requests without a first token, up to --max-num-queued-tokens (262144).",
            width=12,
        ),
    ),
)

TROUBLE = Row(
    "Trouble",
    (
        graph(
            "Refusals by reason",
            REQUESTS,
            Query("sum by (reason) (rate(octavo:requests_refused_total{$s}[$i]))", "{{reason}}"),
            note="queued_*: too much is queued. queue_wait: the wait would be too long. deadline: it could not be met. "
            "tenant_*: the tenant's own limit.",
            is_stacked=True,
        ),
        graph(
            "Share refused and failed",
            SHARE,
            Query("job_model:octavo_refused:ratio_rate5m{$m}", "refused {{model_name}}"),
            Query("job_model:octavo_failed:ratio_rate5m{$m}", "failed {{model_name}}"),
            note="As the alerts see it: needs observability/prometheus/recording.yaml in Prometheus.",
        ),
        graph(
            "HTTP answers by status",
            REQUESTS,
            Query("sum by (status) (rate(http_requests_total{$h}[$i]))", "{{status}}"),
            is_stacked=True,
        ),
        graph(
            "Engine restarts, requests that went on",
            COUNT,
            Query("sum(increase(octavo:engine_restarts_total{$s}[$i]))", "restarts"),
            Query("sum(increase(octavo:resumed_requests_total{$s}[$i]))", "resumed requests"),
            note="A request that was under way when its engine died goes on in the next one.",
        ),
        graph(
            "Up",
            COUNT,
            Query("up{$h}", "{{instance}}"),
            note="1: scraped. 0: not reached, or the answer was none.",
            most=1,
        ),
        graph(
            "HTTP connections",
            COUNT,
            Query("sum(octavo:gateway_connections{$s})", "open"),
            Query("sum(process_open_fds{$h})", "open files of the gateway"),
        ),
    ),
)

WORKLOAD = Row(
    "Workload",
    (
        heatmap("Prompt tokens of a request", "octavo:request_prompt_tokens", COUNT),
        heatmap("Generated tokens of a request", "octavo:request_generation_tokens", COUNT, "All choices together."),
        heatmap(
            "Most tokens that were asked for", "octavo:request_params_max_tokens", COUNT, "max_tokens, where given."
        ),
        graph(
            "Choices of a request",
            COUNT,
            *quantiles("octavo:request_params_n"),
            note="The parameter n.",
            decimals=1,
        ),
        graph(
            "Tokens of the longest choice",
            COUNT,
            *quantiles("octavo:request_max_num_generation_tokens"),
        ),
        graph(
            "HTTP requests by route",
            REQUESTS,
            Query("sum by (handler) (rate(http_requests_total{$h}[$i]))", "{{handler}}"),
        ),
    ),
)

OVERVIEW = Dashboard(
    "octavo-overview",
    "octavo: overview",
    __doc__.strip(),
    (NOW, TRAFFIC, LATENCY, SATURATION, TROUBLE, WORKLOAD),
)
