"""Names, units, labels and buckets: the vocabulary in which the table of metrics.py is written."""

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What Prometheus calls the type of a metric."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


ENGINE_LABELS = ("model_name", "engine")

PHASE_BUCKETS = (
    (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8)
    + (1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0)
    + (60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0)
)  # fmt: skip
FIRST_TOKEN_BUCKETS = (
    (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75)
    + (1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0)
)  # fmt: skip
INTER_TOKEN_BUCKETS = (
    (0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.025, 0.05, 0.075)
    + (0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
)  # fmt: skip
LAG_BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)
HTTP_BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
CHOICES_BUCKETS = (1.0, 2.0, 5.0, 10.0, 20.0)
PREEMPTIONS_BUCKETS = (0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0)
REQUEST_TOKENS_BUCKETS = tuple(float(digit * 10**power) for power in range(6) for digit in (1, 2, 5))
STEP_TOKENS_BUCKETS = tuple(float(2**power) for power in range(15))
STEP_SEQUENCES_BUCKETS = tuple(float(2**power) for power in range(11))
STAGE_BUCKETS = tuple(float(f"{digit}e{power}") for power in range(-5, 1) for digit in (1, 2, 5))

FINISHED_REASONS = ("stop", "length", "abort", "error", "deadline")
WAIT_REASONS = ("token_budget", "kv_blocks", "sequence_slots", "policy", "grammar", "adapter", "fork", "kv_disk")
REFUSAL_REASONS = ("queued_reqs", "queued_tokens", "queue_wait", "deadline", "tenant_tokens", "tenant_requests")
DEADLINE_STAGES = ("queued", "running")
PREEMPTION_KINDS = ("swap", "recompute")
COPY_DIRECTIONS = ("out", "in")
KV_TIERS = ("host", "disk")
EVICTION_REASONS = ("device_full", "host_full", "disk_full")
STAGES = ("schedule", "launch", "wait", "commit")


@dataclass(frozen=True, slots=True)
class Instrument:
    """One metric family.

    ``name`` has no prefix, and counters carry their ``_total``. ``values`` are the only values that the last
    label may take; their series exist, at zero, from the start, since a rate needs a first point. ``source``
    names what the engine's report calls it, of a histogram the counts by bucket and with ``sum_source`` the sum;
    ``scale`` brings the report's unit to ours.
    """

    name: str
    kind: Kind
    unit: str
    help: str
    labels: tuple[str, ...] = ENGINE_LABELS
    values: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    source: str = ""
    sum_source: str = ""
    scale: float = 1.0
    is_prefixed: bool = True
