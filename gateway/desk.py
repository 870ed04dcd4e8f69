"""The desk: where requests are let in, and where is known what concerns all gateway processes together.

There is one for a server: in this process, or in the one that has started this one (``gateway.remote_desk``). Knows no
HTTP but the names of headers.
"""

from typing import Protocol

import msgspec

from gateway.admission import Admission, AdmissionMetrics, Demand
from gateway.admission_forecast import QueueLimits
from gateway.profile_questions import ProfileQuestions
from gateway.request_view import RequestView, encode_view, summarize
from gateway.tenant_usage import Usage
from gateway.tenants import Tenant, Tenants
from gateway.visit import LocalVisit, Visit
from ipc.config import GatewayConfig
from ipc.errors import CapacityError
from ipc.messages import Profile, Profiled, Ready, Stats


class DeskMetrics(AdmissionMetrics, Protocol):
    """What the desk tells, and asks, ``observability.metrics.Metrics``."""

    def set_tenant_usage(self, label: str, usage: Usage) -> None: ...

    def render(self) -> bytes: ...


class DeskClient(Protocol):
    """What the desk asks the engine's client."""

    @property
    def ready(self) -> Ready: ...

    @property
    def is_connected(self) -> bool: ...

    @property
    def num_in_flight(self) -> int: ...

    @property
    def profiles(self) -> ProfileQuestions: ...

    def check_outage(self) -> None: ...

    def requests(self) -> list[RequestView]: ...


class Desk(Protocol):
    """What a gateway asks. ``is_draining``: no new requests are taken."""

    @property
    def is_draining(self) -> bool: ...

    def check_outage(self) -> None:
        """Raises EngineError (503), with the reason, when there has been no engine for a while."""

    async def check(self, tenant: Tenant, num_bytes: int) -> None:
        """Raises CapacityError for a request with so long a body that is not let in whatever it says, EngineError (503)
        while nothing can be served."""

    async def enter(self, tenant: Tenant, demand: Demand) -> Visit:
        """The request is in flight until the visit's end. Raises what ``check`` raises."""

    async def metrics(self) -> bytes:
        """Prometheus text."""

    async def usage(self) -> bytes:
        """What each tenant has used, as JSON."""

    async def requests(self) -> bytes:
        """What is in flight, as JSON (``gateway.request_view.RequestsView``)."""

    async def drain(self) -> int:
        """Take no new requests. How many are in flight."""

    async def profile(self, message: Profile) -> Profiled:
        """What the engine says to it, or why it cannot."""


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


class FrontDesk:
    """The one that decides. ``created``: unix seconds, since when it counts."""

    def __init__(
        self, config: GatewayConfig, tenants: Tenants, client: DeskClient, metrics: DeskMetrics, created: int
    ) -> None:
        limits = QueueLimits(config.max_num_queued_reqs, config.max_num_queued_tokens, config.max_queue_wait)
        self.admission = Admission(limits, metrics)
        self.tenants, self.is_draining = tenants, False
        self._client, self._metrics, self._created = client, metrics, created
        self._stats: Stats | None = None  # the engine's last

    def observe(self, stats: Stats) -> None:
        """The engine's report."""
        self._stats = stats
        self.admission.observe(stats)

    def check(self, tenant: Tenant, num_bytes: int) -> None:
        """See ``Desk``."""
        self.admission.start(self._client.ready)
        self._check_requests(tenant)
        try:
            self.admission.check_places(num_bytes)
        except CapacityError as error:
            raise _with_limits(error, tenant) from None

    def enter(self, tenant: Tenant, demand: Demand, number: int = 0) -> LocalVisit:
        """See ``Desk``. ``number``: what the visit is called on the way to another process."""
        self.admission.start(self._client.ready)
        self._check_requests(tenant)
        works = self.admission.works(demand)
        try:
            tenant.check_tokens(sum(work.num_tokens for work in works))
        except CapacityError as error:
            self._metrics.count_refusal("tenant_tokens")
            raise _with_limits(error, tenant) from None
        try:
            return LocalVisit(self.admission, self.admission.admit(demand, works), tenant, number)
        except CapacityError as error:
            raise _with_limits(error, tenant) from None

    def check_outage(self) -> None:
        """See ``Desk``."""
        self._client.check_outage()

    def _check_requests(self, tenant: Tenant) -> None:
        try:
            tenant.check_requests()
        except CapacityError as error:
            self._metrics.count_refusal("tenant_requests")
            raise _with_limits(error, tenant) from None

    def publish(self) -> None:
        """Bring the metrics up to date."""
        self.admission.publish()
        for label, usage in self.tenants.usage_by_label().items():
            self._metrics.set_tenant_usage(label, usage)

    def metrics(self) -> bytes:
        """See ``Desk``."""
        self.publish()
        return self._metrics.render()

    def usage(self) -> bytes:
        """See ``Desk``: every tenant, the default one first."""
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
            for tenant in self.tenants.all
        ]
        return msgspec.json.encode(UsageReport(self._created, rows))

    def requests(self) -> bytes:
        """See ``Desk``."""
        requests, queue = self._client.requests(), self.admission.queue()
        summary = summarize(
            requests,
            self._stats,
            is_connected=self._client.is_connected,
            num_queued_tokens=queue.num_tokens,
            wait_seconds=queue.wait_seconds,
            num_expected=queue.num_booked,
        )
        return encode_view(requests, summary)

    def drain(self) -> int:
        """See ``Desk``."""
        self.is_draining = True
        return self._client.num_in_flight

    async def profile(self, message: Profile) -> Profiled:
        """See ``Desk``."""
        return await self._client.profiles.ask(message)


class LocalDesk:
    """``FrontDesk`` for a gateway in the same process: nothing has to be waited for."""

    def __init__(self, desk: FrontDesk) -> None:
        self.front = desk

    @property
    def is_draining(self) -> bool:
        """No new requests are taken."""
        return self.front.is_draining

    def check_outage(self) -> None:
        """See ``Desk``."""
        self.front.check_outage()

    async def check(self, tenant: Tenant, num_bytes: int) -> None:
        """See ``Desk``."""
        self.front.check(tenant, num_bytes)

    async def enter(self, tenant: Tenant, demand: Demand) -> Visit:
        """See ``Desk``."""
        return self.front.enter(tenant, demand)

    async def metrics(self) -> bytes:
        """See ``Desk``."""
        return self.front.metrics()

    async def usage(self) -> bytes:
        """See ``Desk``."""
        return self.front.usage()

    async def requests(self) -> bytes:
        """See ``Desk``."""
        return self.front.requests()

    async def drain(self) -> int:
        """See ``Desk``."""
        return self.front.drain()

    async def profile(self, message: Profile) -> Profiled:
        """See ``Desk``."""
        return await self.front.profile(message)


def _with_limits(error: CapacityError, tenant: Tenant) -> CapacityError:
    return CapacityError(error.message, retry_after=error.retry_after, rate_limits=tenant.rate_limit_headers())
