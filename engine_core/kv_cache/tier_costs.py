"""What it costs to copy KV and what to compute it again, as far as that was measured: which of them to prefer."""

from dataclasses import dataclass
from typing import Literal

from engine_core.step_cost import StepCost, context_tokens

PreemptionMode = Literal["auto", "recompute", "swap"]
LEAST_PATIENCE = 0.05  # seconds
UNKNOWN_PATIENCE = 1.0


@dataclass(frozen=True, slots=True)
class TierCosts:
    """``bytes_per_second``: of copies between device and host. Without a ``step_cost`` auto swaps: where it was
    measured, copying a token's KV was far cheaper than computing it."""

    mode: PreemptionMode = "auto"
    bytes_per_block: int = 0
    bytes_per_second: float = 0.0
    step_cost: StepCost | None = None

    def prefers_swap(self, num_tokens: int, num_blocks: int) -> bool:
        """For a sequence whose first ``num_tokens`` tokens are in ``num_blocks`` blocks: they go out and come back."""
        if self.mode != "auto" or self.step_cost is None or self.bytes_per_second <= 0:
            return self.mode != "recompute"
        copying = 2 * num_blocks * self.bytes_per_block / self.bytes_per_second
        return copying < self.step_cost.seconds(num_tokens, 1, context_tokens(0, num_tokens))

    def patience(self, num_tokens: int, end: int) -> float:
        """Seconds to wait for the KV of the last ``num_tokens`` of ``end`` tokens: what computing them would take. So
        waiting in vain costs at most as much again."""
        if self.step_cost is None:
            return UNKNOWN_PATIENCE
        context = context_tokens(end - num_tokens, num_tokens)
        return max(LEAST_PATIENCE, self.step_cost.seconds(num_tokens, 1, context))
