"""The token budget of a step: at most so many rows, and no more of a prompt than the step's time allows.

A prompt is computed in chunks beside sequences that decode, and a long chunk makes all of them wait.
"""

from bisect import bisect_right

from engine_core.step_cost import StepCost, context_tokens

DEFAULT_MAX_TOKENS = 2048
TARGET_SECONDS = 0.25  # of a step in which nobody decodes
MAX_STALL = 2.0  # a step with chunks may take this many times what its decodes alone take, as far as can be told
MIN_ALONE = 128  # rows of a step in which nobody decodes, however slow they are
MIN_CHUNK = 16  # tokens: below it a step computes little beside what it costs anyway


class TokenBudget:
    """What one step may still compute. Without a ``cost`` only the number of tokens counts."""

    __slots__ = ("left", "_chunk_context", "_chunk_rows", "_chunks", "_cost", "_decode_context", "_decodes")

    def __init__(self, num_tokens: int, cost: StepCost | None = None) -> None:
        self.left = num_tokens
        self._cost = cost
        self._chunks = self._chunk_rows = self._chunk_context = 0  # of sequences with more than one token
        self._decodes = self._decode_context = 0

    @property
    def is_spent(self) -> bool:
        """No chunk, not even the shortest, may be added."""
        return not self.left or (self._chunks > 0 and not self._has_time_for(MIN_CHUNK, 0))

    def fit(self, num_tokens: int, start: int) -> int:
        """How many of a sequence's next ``num_tokens`` tokens, the first at ``start``, the step has room for.

        One token always has time, and the first chunk at least ``MIN_CHUNK``: whatever has a slot moves on.
        """
        most = num_tokens if num_tokens <= self.left else self.left
        if most <= 1 or self._has_time_for(most, start):
            return most
        if self._chunks and not self._has_time_for(MIN_CHUNK, start):
            return 0
        sizes = range(1, most + 1)
        fitting = bisect_right(sizes, 0, key=lambda size: int(not self._has_time_for(size, start)))
        return min(most, max(fitting, MIN_CHUNK))

    def spend(self, num_tokens: int, start: int = 0) -> None:
        """Raises ValueError when there are not that many left."""
        if not 1 <= num_tokens <= self.left:
            raise ValueError(f"cannot spend {num_tokens} of {self.left} tokens")
        if num_tokens == 1:  # what nearly all do: without a call
            self.left -= 1
            self._decodes += 1
            self._decode_context += start + 1
        else:
            self._count(num_tokens, start, 1)

    def refund(self, num_tokens: int, start: int = 0) -> None:
        """A sequence was taken out of the step."""
        self._count(num_tokens, start, -1)

    def _count(self, num_tokens: int, start: int, sign: int) -> None:
        self.left -= sign * num_tokens
        if num_tokens == 1:
            self._decodes += sign
            self._decode_context += sign * (start + 1)
        else:
            self._chunks += sign
            self._chunk_rows += sign * num_tokens
            self._chunk_context += sign * context_tokens(start, num_tokens)

    def _has_time_for(self, num_tokens: int, start: int) -> bool:
        if self._cost is None or (not self._decodes and self._chunk_rows + num_tokens <= MIN_ALONE):
            return True
        seconds = self._cost.seconds(
            self._decodes + self._chunk_rows + num_tokens,
            self._decodes + self._chunks + 1,
            self._decode_context + self._chunk_context + context_tokens(start, num_tokens),
        )
        return seconds <= self._limit(self._cost)

    def _limit(self, cost: StepCost) -> float:
        """Seconds that the step may take once it has chunks."""
        if self._decodes:
            return MAX_STALL * cost.seconds(self._decodes, self._decodes, self._decode_context)
        return max(TARGET_SECONDS, MAX_STALL * cost.seconds(1, 1, 1))
