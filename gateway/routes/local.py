"""What needs a key with the scope ``admin`` may, where there are no keys at all, be asked from this machine only."""

import ipaddress

from starlette.requests import Request

from gateway.routes.endpoint import Exchange
from ipc.errors import RequestError


def check_local(exchange: Exchange, what: str) -> None:
    """Raises RequestError (403) unless keys are set or whoever asks is on this machine, and no page of another origin.

    ``what``: what that would be, for the message.
    """
    if not exchange.state.tenants.needs_key and not is_local(exchange.request):
        raise RequestError(f"without API keys only this machine may {what}", status=403, code="insufficient_scope")


def is_local(request: Request) -> bool:
    """From a process of this machine, as far as can be told: a Unix socket, or loopback without a page's Origin.

    A page of ours names no Origin when it gets something; one of another site may not either, but its browser says
    that it is one (Sec-Fetch-Site).
    """
    headers = request.headers
    if "origin" in headers or headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        return False
    host = None if request.client is None else request.client.host
    if not host:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
