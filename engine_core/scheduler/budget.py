"""The token budget of a step."""

MIN_CPU_BUDGET, MAX_CPU_BUDGET = 128, 2048
TARGET_STEP_SECONDS = 0.25


def budget_for_rate(tokens_per_second: float) -> int:
    """What a prefill rate does in 250 ms, within 128 … 2,048, in multiples of 16."""
    tokens = int(tokens_per_second * TARGET_STEP_SECONDS) // 16 * 16
    return max(MIN_CPU_BUDGET, min(MAX_CPU_BUDGET, tokens))


class TokenBudget:
    """The tokens that one step may still compute."""

    __slots__ = ("left",)

    def __init__(self, num_tokens: int) -> None:
        self.left = num_tokens

    def spend(self, num_tokens: int) -> None:
        """Raises ValueError when there is not that much left."""
        if not 1 <= num_tokens <= self.left:
            raise ValueError(f"cannot spend {num_tokens} of {self.left} tokens")
        self.left -= num_tokens

    def refund(self, num_tokens: int) -> None:
        """A sequence was taken out of the step."""
        self.left += num_tokens
