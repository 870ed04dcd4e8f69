"""GET /debug/requests: what is in flight, how far it is and why it waits. Needs a key with the scope ``admin``."""

from gateway.routes.endpoint import Exchange
from gateway.routes.local import check_local


async def requests(exchange: Exchange) -> None:
    """All requests of all gateways, the oldest first (``gateway.request_view.RequestsView``).

    Where no keys are set, only whoever is on this machine may ask: 403.
    """
    check_local(exchange, "see its requests")
    await exchange.reply(await exchange.state.desk.requests())
