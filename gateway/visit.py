"""One generating request that was let in: its place in the queue, its tenant, and what it costs."""

import time
from dataclasses import dataclass, field

from gateway.admission import Admission, Ticket
from gateway.tenant_usage import Bill
from gateway.tenants import Tenant


@dataclass(slots=True)
class Visit:
    """From admission to the end of the response."""

    admission: Admission
    ticket: Ticket
    tenant: Tenant
    bill: Bill = field(init=False)
    _started: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.bill = Bill(self.tenant.usage)
        self.tenant.begin(self.ticket.num_estimated)

    def end(self) -> None:
        """It is over, whichever way. Once."""
        self.admission.release(self.ticket)
        prompt, cached, output = self.ticket.totals()
        self.bill.count(prompt, cached, output)
        self.tenant.end(self.ticket.num_estimated, prompt + output, time.monotonic() - self._started)
