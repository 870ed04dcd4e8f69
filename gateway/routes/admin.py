"""GET /admin/usage: what each tenant has used since the server started. Needs a key with the scope ``admin``."""

from gateway.routes.endpoint import Exchange


async def usage(exchange: Exchange) -> None:
    """Every tenant, the default one first (``gateway.desk.UsageReport``)."""
    await exchange.reply(await exchange.state.desk.usage())
