"""When a request is to be done: the field ``deadline_ms`` and the header ``X-Request-Timeout``.

Both count from the arrival of the request's head, and the earlier one holds.
"""

import re

from gateway.schema.common import GenerationFields
from ipc.errors import RequestError

HEADER = "X-Request-Timeout"
MOST_SECONDS = 86_400
_SECONDS = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")


def requested_deadline_ns(body: GenerationFields, header: str | None, arrival_ns: int) -> int:
    """On the clock of ``arrival_ns``; 0 if there is none. ``header``: seconds, decimals allowed.

    Raises RequestError naming the field or the header.
    """
    timeouts_ns = []
    if body.deadline_ms is not None:
        if not 1 <= body.deadline_ms <= MOST_SECONDS * 1000:
            raise RequestError(f"deadline_ms must be 1 to {MOST_SECONDS * 1000} milliseconds", param="deadline_ms")
        timeouts_ns.append(body.deadline_ms * 1_000_000)
    if header is not None:
        value = header.strip()
        seconds = float(value) if _SECONDS.fullmatch(value) else 0.0
        if not 0 < seconds <= MOST_SECONDS:
            raise RequestError(f"{HEADER} must be a number of seconds above 0, at most {MOST_SECONDS}", param=HEADER)
        timeouts_ns.append(max(1, round(seconds * 1e9)))
    return arrival_ns + min(timeouts_ns) if timeouts_ns else 0


def deadline_missed() -> RequestError:
    """Nothing was sent yet, and nothing will be in time."""
    return RequestError(
        "the deadline of this request passed, or could not be met any more", code="deadline_exceeded", status=408
    )
