"""Who is asking: keys, tenants and what each may do. Keys are known as SHA-256 digests only.

Every request has a tenant: one of the file's, or the default one, which may do everything. Knows no HTTP but the
names of OpenAI's rate-limit headers.
"""

import hashlib
import secrets
import time
from collections.abc import Callable, Iterable

from gateway.tenant_limits import RequestSlots, TokenBucket
from gateway.tenant_usage import Usage
from ipc.config import Scope, TenantConfig
from ipc.errors import CapacityError

Headers = tuple[tuple[bytes, bytes], ...]

DEFAULT_NAME = "default"
ALL_SCOPES: frozenset[Scope] = frozenset(("inference", "metrics", "admin"))
MAX_LABELS = 100
"""Tenants with a label of their own in the metrics; what the others use is added up as ``other``."""

OTHER_LABEL = "other"


class Tenant:
    """One of them, with what it has used since the server started. ``clock``: monotonic seconds."""

    def __init__(self, config: TenantConfig, label: str, scopes: frozenset[Scope], clock: Callable[[], float]) -> None:
        self.name, self.label, self.weight, self.scopes = config.name, label, config.weight, scopes
        self.usage = Usage()
        self._priority_cap, self._clock = config.priority_cap, clock
        tokens, requests = config.tokens_per_minute, config.concurrent_requests
        self._bucket = None if tokens is None else TokenBucket(tokens, clock())
        self._slots = None if requests is None else RequestSlots(requests)

    def priority(self, requested: int) -> int:
        """Lower is first: no lower than the tenant's cap."""
        return requested if self._priority_cap is None else max(requested, self._priority_cap)

    def check_requests(self) -> None:
        """Raises CapacityError when as many requests run as may at once."""
        if self._slots is not None and self._slots.is_full:
            raise CapacityError(
                f"as many requests as this key may have at once are running ({self._slots.num_slots})",
                retry_after=self._slots.refuse(self._clock()),
            )

    def check_tokens(self, num_tokens: float) -> None:
        """Raises CapacityError when that many are not left of this minute's."""
        bucket, now = self._bucket, self._clock()
        if bucket is not None and bucket.seconds_until(num_tokens, now) > 0:
            raise CapacityError(
                f"this key's tokens per minute are used up ({bucket.capacity:.0f})",
                retry_after=bucket.refuse(num_tokens, now),
            )

    def begin(self, num_tokens: float) -> None:
        """A request of so many tokens by estimate was let in."""
        if self._slots is not None:
            self._slots.take()
        if self._bucket is not None:
            self._bucket.take(num_tokens, self._clock())

    def end(self, num_estimated: float, num_used: float, seconds: float) -> None:
        """It is over: what it used instead of the estimate counts."""
        if self._slots is not None:
            self._slots.give_back(seconds)
        if self._bucket is not None:
            self._bucket.take(num_used - num_estimated, self._clock())

    def rate_limit_headers(self) -> Headers:
        """``x-ratelimit-*`` as OpenAI names them, for the limits that there are."""
        fields: list[tuple[str, str, str, float]] = []
        if (slots := self._slots) is not None:
            reset = slots.usual_seconds / slots.num_slots if slots.is_full else 0.0
            fields.append(("requests", str(slots.num_slots), str(max(0, slots.num_slots - slots.num_taken)), reset))
        if (bucket := self._bucket) is not None:
            now = self._clock()
            left = str(max(0, int(bucket.level(now))))
            fields.append(("tokens", f"{bucket.capacity:.0f}", left, bucket.seconds_until(bucket.capacity, now)))
        headers = []
        for name, limit, remaining, reset in fields:
            for part, value in (("limit", limit), ("remaining", remaining), ("reset", duration(reset))):
                headers.append((f"x-ratelimit-{part}-{name}".encode(), value.encode()))
        return tuple(headers)


class Tenants:
    """All of them. ``plain_keys``: keys of the default tenant, in clear, which may do everything."""

    def __init__(
        self,
        configs: Iterable[TenantConfig] = (),
        plain_keys: Iterable[str] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        nobody = TenantConfig(name=DEFAULT_NAME, keys=())
        self.default = Tenant(nobody, DEFAULT_NAME, ALL_SCOPES, clock)
        self.all = [self.default]
        self._keys = [(digest(key.encode()), self.default) for key in plain_keys]
        for config in configs:
            label = config.name if len(self.all) <= MAX_LABELS else OTHER_LABEL
            tenant = Tenant(config, label, frozenset(config.scopes), clock)
            self.all.append(tenant)
            self._keys += [(bytes.fromhex(key), tenant) for key in config.keys]
        self._by_name = {tenant.name: tenant for tenant in self.all}

    @property
    def needs_key(self) -> bool:
        """Requests must show one."""
        return bool(self._keys)

    def find(self, key: bytes) -> Tenant | None:
        """Whose key it is. Every key is compared, in constant time: the time does not tell which one was close."""
        found, shown = None, digest(key)
        for known, tenant in self._keys:
            if secrets.compare_digest(shown, known):
                found = tenant
        return found

    def by_name(self, name: str) -> Tenant:
        """The tenant of that name. Raises KeyError."""
        return self._by_name[name]

    def usage_by_label(self) -> dict[str, Usage]:
        """What the metrics show."""
        by_label: dict[str, Usage] = {}
        for tenant in self.all:
            by_label.setdefault(tenant.label, Usage()).add(tenant.usage)
        return by_label


def digest(key: bytes) -> bytes:
    """How a key is kept. Keys are long and random, so that a fast hash is no weaker than a slow one."""
    return hashlib.sha256(key).digest()


def duration(seconds: float) -> str:
    """As in OpenAI's headers: ``120ms``, ``1.5s``, ``6m0s``."""
    if seconds < 1:
        return f"{round(seconds * 1000)}ms"
    minutes, rest = divmod(seconds, 60)
    return f"{int(minutes)}m{int(rest)}s" if minutes else f"{round(rest, 3):g}s"
