"""POST /admin/drain: take no new requests, let what runs finish. The process stays until it is told to end."""

import msgspec

from gateway.routes.endpoint import Exchange
from gateway.routes.local import check_local


class DrainStatus(msgspec.Struct):
    """``in_flight``: requests that have not ended."""

    in_flight: int
    status: str = "draining"


async def drain(exchange: Exchange) -> None:
    """Readiness is off from now on and new requests get 503. Asked again it says how many are left.

    Where no keys are set, only whoever is on this machine may ask, and no page in a browser: 403.
    """
    check_local(exchange, "drain the server")
    await exchange.reply(msgspec.json.encode(DrainStatus(await exchange.state.desk.drain())))
