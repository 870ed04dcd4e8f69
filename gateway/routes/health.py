"""Liveness, readiness, metrics and version."""

import msgspec

from gateway.responses import send_body
from gateway.routes.endpoint import Exchange
from observability.metrics import CONTENT_TYPE


async def live(exchange: Exchange) -> None:
    """200 as long as the event loop runs."""
    await exchange.reply(b'{"status":"alive"}')


async def ready(exchange: Exchange) -> None:
    """200 when a completion would be served soon; 503 with Retry-After while the engine starts, the server drains, or
    none has come for a while in the place of an engine that died."""
    exchange.state.ready()
    exchange.state.desk.check_outage()
    await exchange.reply(b'{"status":"ready"}')


async def metrics(exchange: Exchange) -> None:
    """Prometheus text."""
    await send_body(exchange.send, 200, await exchange.state.desk.metrics(), CONTENT_TYPE)


async def version(exchange: Exchange) -> None:
    """Which octavo this is."""
    await exchange.reply(msgspec.json.encode({"version": exchange.state.version}))
