"""POST /admin/drain: take no new requests, let what runs finish. The process stays until it is told to end."""

import ipaddress

import msgspec
from starlette.requests import Request

from gateway.routes.endpoint import Exchange
from ipc.errors import RequestError


class DrainStatus(msgspec.Struct):
    """``in_flight``: requests that have not ended."""

    in_flight: int
    status: str = "draining"


async def drain(exchange: Exchange) -> None:
    """Readiness is off from now on and new requests get 503. Asked again it says how many are left.

    Where no keys are set, only whoever is on this machine may ask, and no page in a browser: 403.
    """
    state = exchange.state
    if not state.tenants.needs_key and not is_local(exchange.request):
        raise RequestError(
            "without API keys only this machine may drain the server", status=403, code="insufficient_scope"
        )
    state.is_draining = True
    await exchange.reply(msgspec.json.encode(DrainStatus(state.client.num_in_flight)))


def is_local(request: Request) -> bool:
    """From a process of this machine, as far as can be told: a Unix socket, or loopback without a page's Origin."""
    if "origin" in request.headers:
        return False
    host = None if request.client is None else request.client.host
    if not host:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
