"""Where KV blocks and the time of the engine's steps go, and what the processes take."""

from observability.grafana.board import (
    BLOCKS,
    BYTES,
    CORES,
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
    mean,
    quantile,
    quantiles,
    stat,
)

ENGINE = "instance, model_name, engine"
ENGINE_LEGEND = "{{instance}} {{model_name}} {{engine}}"
NO_HOST_TIER = "Zero unless --kv-host-memory-bytes is given."
NO_DISK_TIER = "Zero unless --kv-disk-path is given."

NOW = Row(
    "Now",
    (
        stat(
            "KV usage",
            "max(octavo:kv_cache_usage_perc{$s})",
            SHARE,
            note="Of the fullest engine.",
            width=4,
            most=1,
            thresholds=((0.9, "yellow"), (0.98, "red")),
        ),
        stat("Free blocks", "sum(octavo:kv_blocks_free{$s})", BLOCKS, width=4),
        stat(
            "Preemptions",
            "sum(rate(octavo:num_preemptions_total{$s}[$i]))",
            REQUESTS,
            width=4,
            thresholds=((0.1, "yellow"), (1, "red")),
        ),
        stat("Steps", "sum(rate(octavo:steps_total{$s}[$i]))", "suffix: steps/s", width=4),
        stat(
            "Sequences a step",
            mean("octavo:iteration_sequences"),
            COUNT,
            width=4,
            decimals=1,
        ),
        stat(
            "Event loop lag p99",
            quantile(0.99, "octavo:gateway_event_loop_lag_seconds"),
            SECONDS,
            width=4,
            thresholds=((0.05, "yellow"), (0.2, "red")),
        ),
    ),
)

BLOCK_POOL = Row(
    "KV blocks",
    (
        graph(
            "Blocks",
            BLOCKS,
            Query("sum(octavo:kv_blocks{$s}) - sum(octavo:kv_blocks_free{$s})", "held by requests"),
            Query("sum(octavo:kv_blocks_free{$s})", "free"),
            note="Together the pool of the device. Nothing while an engine starts.",
            is_stacked=True,
        ),
        graph(
            "Blocks with a known prefix",
            BLOCKS,
            Query("sum(octavo:kv_blocks_cached{$s})", "cached"),
            Query("sum(octavo:kv_blocks{$s})", "all"),
            note="Free or held, a request with the same prefix finds them. Zero with --no-enable-prefix-caching.",
        ),
        graph(
            "KV usage by engine",
            SHARE,
            Query(f"max by ({ENGINE}) (octavo:kv_cache_usage_perc{{$s}})", ENGINE_LEGEND),
            most=1,
            thresholds=((0.9, "yellow"), (0.98, "red")),
            lines=True,
        ),
        graph(
            "Evictions",
            "suffix: blocks/s",
            Query("sum by (reason) (rate(octavo:kv_block_evictions_total{$s}[$i]))", "{{reason}}"),
            note="Blocks with a known prefix whose room was needed, by tier. Many, and few hits: that tier is small.",
        ),
        graph(
            "Preemptions by kind",
            REQUESTS,
            Query("sum by (kind) (rate(octavo:preemptions_by_kind_total{$s}[$i]))", "{{kind}}"),
            note="swap: its KV waits on the host. recompute: it is computed again.",
            is_stacked=True,
        ),
        graph(
            "Preemptions of a request",
            COUNT,
            *quantiles("octavo:request_num_preemptions"),
            note="All choices together.",
            decimals=1,
        ),
    ),
)

PREFIXES = Row(
    "Prefixes and tiers",
    (
        graph(
            "Prompt tokens found, by place",
            SHARE,
            Query(
                "sum(rate(octavo:prefix_cache_hits_total{$s}[$i])) "
                "/ sum(rate(octavo:prefix_cache_queries_total{$s}[$i]))",
                "KV cache",
            ),
            Query(
                "sum by (tier) (rate(octavo:kv_tier_hits_total{$s}[$i])) "
                "/ scalar(sum(rate(octavo:prefix_cache_queries_total{$s}[$i])))",
                "{{tier}}",
            ),
            note="Of those looked up. host and disk are zero without those tiers. No line while there are no prompts.",
        ),
        graph(
            "Tokens from the tiers",
            TOKENS,
            Query("sum by (tier) (rate(octavo:kv_tier_hits_total{$s}[$i]))", "{{tier}}"),
            note="Zero unless --kv-host-memory-bytes or --kv-disk-path is given.",
        ),
        graph(
            "Prompt tokens computed, of a request",
            COUNT,
            *quantiles("octavo:request_prefill_kv_computed_tokens"),
            note="What no cache had.",
        ),
        graph(
            "Blocks copied",
            "suffix: blocks/s",
            Query("sum by (direction) (rate(octavo:kv_blocks_copied_total{$s}[$i]))", "{{direction}}"),
            note="Out to the host tier and in again. " + NO_HOST_TIER,
        ),
        graph(
            "Host tier",
            BLOCKS,
            Query("sum(octavo:kv_host_blocks_used{$s})", "used"),
            Query("sum(octavo:kv_host_blocks{$s})", "room"),
            note=NO_HOST_TIER,
        ),
        graph(
            "Disk tier",
            BYTES,
            Query("sum by (instance) (octavo:kv_disk_bytes{$s})", "{{instance}}"),
            note="Size of its files. " + NO_DISK_TIER,
            width=4,
        ),
        graph(
            "Disk tier: trouble",
            COUNT,
            Query("sum(increase(octavo:kv_disk_errors_total{$s}[$i]))", "failed"),
            Query("sum(increase(octavo:kv_disk_corrupt_files_total{$s}[$i]))", "not as written"),
            note="Reads and writes that failed; files that were not as written, whose KV was computed again. "
            + NO_DISK_TIER,
            width=4,
            thresholds=((0.5, "red"),),
        ),
    ),
)

STEPS = Row(
    "Steps",
    (
        graph(
            "Time of a step, by stage",
            SECONDS,
            Query(
                "sum by (stage) (rate(octavo:step_stage_seconds_sum{$s}[$i])) "
                "/ scalar(sum(rate(octavo:steps_total{$s}[$i])))",
                "{{stage}}",
            ),
            note="The mean. wait: for the device. The rest is the host's, hidden behind it with --async-scheduling.",
            is_stacked=True,
        ),
        graph(
            "Where the loop's time goes",
            SHARE,
            Query(
                "sum by (stage) (rate(octavo:step_stage_seconds_sum{$s}[$i])) / scalar(count(octavo:steps_total{$s}))",
                "{{stage}}",
            ),
            note="Of one engine. What is missing to 100 % is the time without work.",
            is_stacked=True,
            most=1,
        ),
        graph(
            "Time of a step by stage, p99",
            SECONDS,
            Query(
                quantile(0.99, "octavo:step_stage_seconds", by="stage"),
                "{{stage}}",
            ),
        ),
        graph(
            "Tokens a step",
            COUNT,
            *quantiles("octavo:iteration_tokens_total"),
            note="Up to --max-num-batched-tokens.",
            decimals=0,
        ),
        graph(
            "Sequences a step",
            COUNT,
            *quantiles("octavo:iteration_sequences"),
            note="The batch, up to --max-num-seqs.",
            decimals=0,
        ),
        graph(
            "Steps",
            "suffix: steps/s",
            Query(f"sum by ({ENGINE}) (rate(octavo:steps_total{{$s}}[$i]))", ENGINE_LEGEND),
        ),
        heatmap("Tokens a step", "octavo:iteration_tokens_total", COUNT, width=12),
        heatmap("Sequences a step", "octavo:iteration_sequences", COUNT, width=12),
    ),
)

PROCESSES = Row(
    "Processes",
    (
        graph(
            "Event loop lag",
            SECONDS,
            *quantiles("octavo:gateway_event_loop_lag_seconds", shares=(0.5, 0.95, 0.99)),
            note="How late the gateway's loop runs what is due. Above 50 ms streams stutter: try --api-server-count.",
        ),
        graph(
            "Processors",
            CORES,
            Query("sum by (instance) (rate(octavo:engine_cpu_seconds_total{$s}[$i]))", "{{instance}} engine"),
            Query("sum by (instance) (rate(octavo:gateway_cpu_seconds_total{$s}[$i]))", "{{instance}} gateway"),
        ),
        graph(
            "Memory",
            BYTES,
            Query("sum by (instance) (octavo:engine_resident_memory_bytes{$s})", "{{instance}} engine"),
            Query("sum by (instance) (octavo:gateway_resident_memory_bytes{$s})", "{{instance}} gateway"),
        ),
        graph(
            "Written, not read by clients yet",
            BYTES,
            Query("sum by (instance) (octavo:gateway_buffered_bytes{$s})", "{{instance}}"),
            note="Clients that read slowly; --slow-client-timeout ends them.",
            width=12,
        ),
        graph(
            "Connections and files of the gateway",
            COUNT,
            Query("sum by (instance) (octavo:gateway_connections{$s})", "{{instance}} connections"),
            Query("process_open_fds{$h}", "{{instance}} files"),
            width=12,
        ),
    ),
)

SCHEDULER = Dashboard(
    "octavo-scheduler",
    "octavo: KV and scheduler",
    __doc__.strip(),
    (NOW, BLOCK_POOL, PREFIXES, STEPS, PROCESSES),
)
