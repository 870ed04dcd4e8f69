"""One generating request that was let in: its place in the queue, its tenant, and what it costs."""

import time
from dataclasses import dataclass, field
from typing import Protocol

from gateway.admission import Admission, Progress, Ticket
from gateway.tenant_usage import Bill
from gateway.tenants import Headers, Tenant


class Visit(Protocol):
    """From admission to the end of the response. ``number``: the desk's, where that is another process, else 0."""

    number: int
    tenant: Tenant
    bill: Bill
    rate_limits: Headers

    def attach(self, progress: Progress, *, num_prompt_tokens: int, num_choices: int, max_tokens: int) -> None: ...

    def end(self) -> None: ...


@dataclass(slots=True)
class LocalVisit:
    """Where the desk is in this process."""

    admission: Admission
    ticket: Ticket
    tenant: Tenant
    number: int = 0
    bill: Bill = field(init=False)
    rate_limits: Headers = field(init=False)
    _started: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.bill = Bill(self.tenant.usage)
        self.tenant.begin(self.ticket.num_estimated)
        self.rate_limits = self.tenant.rate_limit_headers()

    def attach(self, progress: Progress, *, num_prompt_tokens: int, num_choices: int, max_tokens: int) -> None:
        """A prompt of it is tokenized, and soon with the engine. ``max_tokens``: of each choice."""
        self.ticket.attach(
            progress, num_prompt_tokens=num_prompt_tokens, num_choices=num_choices, max_tokens=max_tokens
        )

    def end(self) -> None:
        """It is over, whichever way. Once."""
        self.admission.release(self.ticket)
        prompt, cached, output = self.ticket.totals()
        self.bill.count(prompt, cached, output)
        self.tenant.end(self.ticket.num_estimated, prompt + output, time.monotonic() - self._started)
