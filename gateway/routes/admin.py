"""GET /admin/usage: what each tenant has used since the server started. Needs a key with the scope ``admin``."""

import msgspec

from gateway.routes.endpoint import Exchange


class TenantUsage(msgspec.Struct):
    """One tenant's. Seconds are of the engine's time, block-seconds of KV blocks held."""

    tenant: str
    requests: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    device_seconds: float
    kv_block_seconds: float


class UsageReport(msgspec.Struct):
    """``since``: unix seconds."""

    since: int
    data: list[TenantUsage]
    object: str = "list"


async def usage(exchange: Exchange) -> None:
    """Every tenant, the default one first."""
    state = exchange.state
    rows = [
        TenantUsage(
            tenant.name,
            tenant.usage.num_requests,
            tenant.usage.prompt_tokens,
            tenant.usage.cached_tokens,
            tenant.usage.output_tokens,
            tenant.usage.device_ns * 1e-9,
            tenant.usage.kv_block_ns * 1e-9,
        )
        for tenant in state.tenants.all
    ]
    await exchange.reply(msgspec.json.encode(UsageReport(state.created, rows)))
