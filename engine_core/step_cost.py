"""How long a step takes, as a function of what is in it: a model of four measured numbers.

Plain arithmetic; knows nothing of who measured the numbers or what a scheduler makes of the answer.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepCost:
    """All in seconds. ``floor``: reading the weights once, whatever the step holds. ``row``: computing one row, where
    there are enough of them to hide the floor. ``sequence``: each scheduled sequence beside its rows (head, sampling,
    host work). ``context``: one row looking at one token of its context."""

    floor: float
    row: float
    sequence: float
    context: float

    def seconds(self, num_rows: int, num_sequences: int, num_context_tokens: int) -> float:
        """Of a step. ``num_context_tokens``: summed over the rows."""
        rows = max(self.floor, self.row * num_rows)
        return rows + self.sequence * num_sequences + self.context * num_context_tokens


def context_tokens(start: int, num_tokens: int) -> int:
    """What the rows at ``start`` … ``start`` + ``num_tokens`` − 1 look at together, themselves included."""
    return num_tokens * start + num_tokens * (num_tokens + 1) // 2
