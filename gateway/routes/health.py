"""Liveness, readiness, metrics and version."""

import msgspec

from gateway.responses import send_body
from gateway.routes.endpoint import Exchange
from observability.metrics import CONTENT_TYPE


async def live(exchange: Exchange) -> None:
    """200 as long as the event loop runs."""
    await exchange.reply(b'{"status":"alive"}')


async def ready(exchange: Exchange) -> None:
    """200 when a completion would be served; 503 with Retry-After while the engine starts or the server drains."""
    exchange.state.ready()
    await exchange.reply(b'{"status":"ready"}')


async def metrics(exchange: Exchange) -> None:
    """Prometheus text."""
    state = exchange.state
    state.admission.publish()
    for label, usage in state.tenants.usage_by_label().items():
        state.metrics.set_tenant_usage(label, usage)
    await send_body(exchange.send, 200, state.metrics.render(), CONTENT_TYPE)


async def version(exchange: Exchange) -> None:
    """Which octavo this is."""
    await exchange.reply(msgspec.json.encode({"version": exchange.state.version}))
