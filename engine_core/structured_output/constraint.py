"""A grammar as the scheduler sees it: the backend's matcher, and what the request says about endings."""

from engine_core.sequence import GrammarError
from engine_core.structured_output.backend import CompiledGrammar
from ipc.params import SamplingParams


class Constraint:
    """``engine_core.sequence.Grammar`` for one choice. ``num_bytes``: of a mask.

    The grammar wins over ``min_tokens``: a complete output ends, however short. Until then an id that would end the
    output is allowed where the grammar may end, after ``min_tokens`` tokens.
    """

    def __init__(self, grammar: CompiledGrammar, params: SamplingParams, num_bytes: int) -> None:
        self._matcher = grammar.start()
        self._num_bytes = num_bytes
        self._min_tokens, self._num_tokens = params.min_tokens, 0
        self._stop_set = params.stop_set

    @property
    def is_complete(self) -> bool:
        """Nothing may follow."""
        return self._matcher.is_complete

    def accept(self, token_ids: tuple[int, ...]) -> None:
        """The output went on by these tokens. One that ends it is no part of the grammar.

        Raises GrammarError if the grammar does not allow one.
        """
        for token_id in token_ids:
            self._num_tokens += 1
            if token_id not in self._stop_set and not self._matcher.accept(token_id):
                raise GrammarError(f"token {token_id} does not fit the grammar, or the grammar's limits are exceeded")

    def mask(self) -> bytes:
        """Which ids may come next. Raises GrammarError if none may."""
        mask = bytearray(self._num_bytes)
        self._matcher.fill(mask)
        may_end = self._matcher.may_end and self._num_tokens >= self._min_tokens
        for token_id in self._stop_set:
            bit = 1 << token_id % 8
            mask[token_id // 8] = mask[token_id // 8] & ~bit | (bit if may_end else 0)
        return bytes(mask)
