"""Who uses the server: requests, tokens and cost of each tenant of --api-keys-file, up to a hundred by name."""

from observability.grafana.board import (
    COUNT,
    REQUESTS,
    SECONDS,
    SHARE,
    TOKENS,
    Dashboard,
    Json,
    Panel,
    Query,
    Row,
    Variable,
    graph,
    stat,
)

CHOSEN = '{$s, tenant=~"$tenant"}'
NO_TENANTS = "Without --api-keys-file everybody is the tenant default."


def by_tenant(name: str, interval: str = "$i", function: str = "rate") -> str:
    """How the counter of each chosen tenant grows."""
    return f"sum by (tenant) ({function}(octavo:tenant_{name}_total{CHOSEN}[{interval}]))"


def share(name: str) -> str:
    """Each chosen tenant's part of what all have used."""
    return f"{by_tenant(name)} / scalar(sum(rate(octavo:tenant_{name}_total{{$s}}[$i])))"


def panel(title: str, name: str, unit: str, note: str = "") -> Panel:
    """A line for each tenant."""
    return graph(
        title,
        unit,
        Query(by_tenant(name), "{{tenant}}"),
        note=note,
        is_stacked=True,
    )


# The counter, the column's heading, its unit.
COLUMNS = (
    ("requests", "Requests", COUNT),
    ("prompt_tokens", "Prompt tokens", COUNT),
    ("cached_tokens", "Cached tokens", COUNT),
    ("generation_tokens", "Generated tokens", COUNT),
    ("device_seconds", "Device time", SECONDS),
    ("kv_block_seconds", "KV block seconds", COUNT),
)


def _unit(column: str, unit: str) -> Json:
    return {"matcher": {"id": "byName", "options": column}, "properties": [{"id": "unit", "value": unit}]}


BILL = graph(
    "Used in the time shown",
    COUNT,
    *tuple(Query(by_tenant(name, "$__range", "increase"), title, is_table=True) for name, title, _ in COLUMNS),
    note=NO_TENANTS,
    kind="table",
    width=24,
    decimals=0,
    overrides=tuple(_unit(title, unit) for _, title, unit in COLUMNS),
    transformations=(
        {"id": "merge", "options": {}},
        {
            "id": "organize",
            "options": {
                "excludeByName": {"Time": True},
                "renameByName": {
                    "tenant": "Tenant",
                    **{f"Value #{chr(ord('A') + index)}": title for index, (_, title, _) in enumerate(COLUMNS)},
                },
            },
        },
    ),
)

NOW = Row(
    "All of them",
    (
        stat(
            "Active tenants",
            "count(sum by (tenant) (increase(octavo:tenant_requests_total{$s}[$__range])) > 0) or vector(0)",
            width=6,
            note="Those with a request that ended in the time shown.",
        ),
        stat("Requests", "sum(rate(octavo:tenant_requests_total{$s}[$i]))", REQUESTS, width=6),
        stat(
            "Device time a 1,000 generated tokens",
            "1000 * sum(rate(octavo:tenant_device_seconds_total{$s}[$i])) "
            "/ sum(rate(octavo:tenant_generation_tokens_total{$s}[$i]))",
            SECONDS,
            width=6,
            note="Prompts are in it, too.",
        ),
        stat(
            "Refused for their tenant's limits",
            'sum(rate(octavo:requests_refused_total{$s, reason=~"tenant_.*"}[$i]))',
            REQUESTS,
            width=6,
            thresholds=((0.01, "yellow"),),
        ),
        BILL,
    ),
)

USE = Row(
    "Use",
    (
        panel("Requests", "requests", REQUESTS, "That have ended. " + NO_TENANTS),
        panel("Prompt tokens", "prompt_tokens", TOKENS),
        panel("Generated tokens", "generation_tokens", TOKENS),
        panel("Cached prompt tokens", "cached_tokens", TOKENS, "Whose KV was reused."),
        panel(
            "Device time",
            "device_seconds",
            "suffix: s/s",
            "Each tenant's share of the engine's steps by tokens; 1 s/s is one engine, busy all the time.",
        ),
        panel(
            "KV blocks held",
            "kv_block_seconds",
            "suffix: blocks",
            "On average over the interval: block seconds a second. A shared block counts for each that holds it.",
        ),
    ),
)

FAIRNESS = Row(
    "Shares",
    (
        graph(
            "Share of the device time",
            SHARE,
            Query(share("device_seconds"), "{{tenant}}"),
            is_stacked=True,
            most=1,
            note="With --scheduling-policy fair it follows the weights, while all of them have work.",
        ),
        graph(
            "Share of the generated tokens",
            SHARE,
            Query(share("generation_tokens"), "{{tenant}}"),
            is_stacked=True,
            most=1,
        ),
        graph(
            "Share of the device time, in the time shown",
            SHARE,
            Query(
                f"{by_tenant('device_seconds', '$__range')} "
                "/ scalar(sum(rate(octavo:tenant_device_seconds_total{$s}[$__range])))",
                "{{tenant}}",
            ),
            kind="bargauge",
            most=1,
        ),
        graph(
            "Refusals for limits of tenants",
            REQUESTS,
            Query('sum by (reason) (rate(octavo:requests_refused_total{$s, reason=~"tenant_.*"}[$i]))', "{{reason}}"),
            note="tokens_per_minute and concurrent_requests in the file; not by tenant.",
            is_stacked=True,
        ),
        graph(
            "Prompt tokens from the cache",
            SHARE,
            Query(f"{by_tenant('cached_tokens')} / {by_tenant('prompt_tokens')}", "{{tenant}}"),
            most=1,
        ),
        graph(
            "Device time a 1,000 generated tokens",
            SECONDS,
            Query(f"1000 * {by_tenant('device_seconds')} / {by_tenant('generation_tokens')}", "{{tenant}}"),
        ),
    ),
)

TENANTS = Dashboard(
    "octavo-tenants",
    "octavo: tenants",
    __doc__.strip(),
    (NOW, USE, FAIRNESS),
    (Variable("tenant", "Tenant", "label_values(octavo:tenant_requests_total{$s}, tenant)"),),
)
