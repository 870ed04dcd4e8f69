"""What a run is to be like: the command line as a value."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Settings:
    """Times of SLOs in milliseconds, as their flags have them; others in seconds."""

    seed: int = 0
    model: str | None = None
    api_keys: tuple[str, ...] = ()
    flood_key: str | None = None
    rate: float | None = None  # arrivals a second of all users together; None: closed loop
    think_time: float = 1.0
    timeout: float = 120.0
    longest_retry: float = 60.0
    num_choices: int = 3
    flood_burst: int = 8
    patience: float = 1.5
    temperature: float = 0.7
    body: dict[str, Any] = field(default_factory=dict)
    slo_ttft_ms: float = 2000.0
    slo_tpot_ms: float = 100.0
    max_client_lag_ms: float = 25.0
    max_client_cpu: float = 0.8
