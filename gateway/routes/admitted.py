"""Around the generating routes: who is let in, before anything of the request is checked or tokenized.

A refusal costs as little as can be: with all places taken the body is not even read.
"""

import math
from collections.abc import Awaitable, Callable
from dataclasses import replace

from gateway.admission import Demand
from gateway.admission_body import glance
from gateway.middleware import add_response_headers
from gateway.responses import send_error
from gateway.routes.endpoint import Exchange
from gateway.schema.deadline import HEADER as DEADLINE_HEADER
from gateway.schema.errors import from_exception
from gateway.tenants import Tenant
from gateway.visit import Visit
from ipc.errors import CapacityError, RequestError

Handler = Callable[[Exchange], Awaitable[None]]


def admitted(handler: Handler, default_max_tokens: float = math.inf) -> Handler:
    """``handler`` for those who are let in; the others get 429 with Retry-After. ``default_max_tokens``: most output
    tokens of a request that does not say."""

    async def create(exchange: Exchange) -> None:
        state, scope = exchange.state, exchange.request.scope
        tenant: Tenant = scope.get("state", {}).get("tenant", state.tenants.default)
        try:
            visit = await _let_in(exchange, tenant, default_max_tokens)
        except CapacityError as error:
            add_response_headers(scope, error.rate_limits)
            await send_error(exchange.send, from_exception(error))
            return
        try:
            add_response_headers(scope, visit.rate_limits)
            await handler(replace(exchange, visit=visit))
        finally:
            visit.end()

    return create


async def _let_in(exchange: Exchange, tenant: Tenant, default_max_tokens: float) -> Visit:
    """Raises CapacityError for who is to come later, RequestError for who asks for too much at once, EngineError (503)
    while nothing can be served."""
    state, headers = exchange.state, exchange.request.headers
    state.ready()
    await state.desk.check(tenant, _content_length(headers.get("content-length", "")))
    timeout = _seconds(headers.get(DEADLINE_HEADER, ""))
    demand = glance(await exchange.request.body(), default_max_tokens, timeout)
    _check_size(demand, state.config.max_num_queued_reqs)
    return await state.desk.enter(tenant, demand)


def _check_size(demand: Demand, num_places: int) -> None:
    """Raises RequestError for what could not be let in even if nobody else were there: to come again is no use."""
    if demand.num_sequences > num_places:
        raise RequestError(
            f"the request asks for {demand.num_sequences} sequences (prompts times n), and this server takes at most "
            f"{num_places} in all (--max-num-queued-reqs)",
            param="n" if demand.num_choices > 1 else "prompt",
            code="too_many_sequences",
        )


def _seconds(text: str) -> float:
    """What the client waits at most. What is no number is refused when it is checked."""
    try:
        seconds = float(text)
    except ValueError:
        return math.inf
    return seconds if seconds > 0 else math.inf


def _content_length(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else 0
