"""How long outputs become, learned from those that ended: what a sequence still has to say.

A histogram by powers of two that forgets: lengths differ by orders of magnitude, and traffic changes. Given that an
output has come so far, only those that went further say something about its rest.
"""

from engine_core.sequence import Sequence
from ipc.messages import FinishReason

MIN_EVIDENCE = 16  # outputs; with fewer nothing is known
MEMORY = 1024  # outputs, after which what is known counts half
SURE = 0.9  # share of the outputs that are longer than ``least``, and of those that are shorter than ``most``


class OutputLengths:
    """All operations take the same small time, whatever was learned."""

    def __init__(self) -> None:
        self._counts = [0.0] * 64  # by bit length
        self._sums = [0.0] * 64  # tokens
        self._total = 0.0

    def learn(self, seq: Sequence) -> None:
        """It has ended. Only what came to an end of its own counts, and a step of a beam search is no output."""
        if seq.finish_reason not in (FinishReason.STOP, FinishReason.LENGTH) or seq.request.is_continued:
            return
        length = seq.num_output_tokens
        self._counts[length.bit_length()] += 1.0
        self._sums[length.bit_length()] += length
        self._total += 1.0
        if self._total > MEMORY:
            self._counts = [count / 2 for count in self._counts]
            self._sums = [total / 2 for total in self._sums]
            self._total /= 2

    def expected(self, seq: Sequence) -> int:
        """Tokens that the output will still have: the mean of what went on as far, at most what the request allows.
        All of that while nothing is known, and where no id ends the output."""
        num_output, most = _progress(seq)
        first = (num_output + 1).bit_length()
        count = sum(self._counts[first:])
        if count < MIN_EVIDENCE or not seq.request.stop_set:
            return most
        return min(most, max(1, round(sum(self._sums[first:]) / count) - num_output))

    def most(self, seq: Sequence) -> int:
        """Tokens that it will have at most, by what ``SURE`` of those had that went on as far; never more than the
        request allows, and all of that while nothing is known, and where no id ends the output."""
        num_output, most = _progress(seq)
        if not seq.request.stop_set or (bits := self._quantile(num_output, SURE)) is None:
            return most
        return min(most, (1 << bits) - 1 - num_output)

    def least(self, seq: Sequence) -> int:
        """Tokens that it will have at least, by what ``SURE`` of those did that went on as far. One while nothing is
        known, and what min_tokens says in any case."""
        num_output, most = _progress(seq)
        least = max(1, seq.request.params.min_tokens - num_output)
        if (bits := self._quantile(num_output, 1 - SURE)) is not None:
            least = max(least, (1 << (bits - 1)) - num_output)
        return min(most, least)

    def _quantile(self, num_output: int, share: float) -> int | None:
        """The bit length of what that share of the outputs did not exceed which went on as far; None: not known."""
        bits = (num_output + 1).bit_length()
        count = sum(self._counts[bits:])
        if count < MIN_EVIDENCE:
            return None
        shorter = self._counts[bits]
        while shorter <= share * count:
            bits += 1
            shorter += self._counts[bits]
        return bits


def _progress(seq: Sequence) -> tuple[int, int]:
    """(output tokens known or on their way, how many more the request allows)."""
    num_output = seq.num_output_tokens + seq.num_pending
    return num_output, max(0, seq.output_limit - num_output)


def num_to_compute(seq: Sequence) -> int:
    """Tokens that are known and not computed. A choice that begins at its request's fork finds its prompt there."""
    if seq.request.fork is not None and not seq.was_admitted:
        return len(seq.token_ids) - seq.request.fork.num_tokens
    return seq.num_uncomputed_tokens
