"""Log-probabilities from the wire: unpacked only for the requests that asked, finite for JSON."""

from dataclasses import dataclass

from ipc.codec import unpack_floats, unpack_ids
from ipc.messages import TokenLogprobs

MIN_LOGPROB = -9999.0
"""OpenAI's sentinel for an impossible token; JSON has no −inf."""


@dataclass(slots=True)
class TokenLogprob:
    """One token with its log-probability and the most likely ones, (id, log-probability) in descending order.

    ``rank``: 1 is the most likely; 0 where it was not asked for.
    """

    token_id: int
    logprob: float
    top: list[tuple[int, float]]
    rank: int = 0


def unpack_logprobs(packed: TokenLogprobs, token_ids: list[int]) -> list[TokenLogprob]:
    """An entry for each of ``token_ids``; ``packed`` may hold more, which are left out."""
    logprobs = [_finite(value) for value in unpack_floats(packed.logprobs)]
    num_top = packed.num_top
    if not num_top:
        return [TokenLogprob(token_id, logprob, []) for token_id, logprob in zip(token_ids, logprobs, strict=False)]
    top_ids = unpack_ids(packed.top_ids)
    top_logprobs = [_finite(value) for value in unpack_floats(packed.top_logprobs)]
    top = list(zip(top_ids, top_logprobs, strict=True))
    return [
        TokenLogprob(token_id, logprob, top[row * num_top : (row + 1) * num_top])
        for row, (token_id, logprob) in enumerate(zip(token_ids, logprobs, strict=False))
    ]


def unpack_ranked(packed: TokenLogprobs, token_ids: list[int]) -> list[TokenLogprob]:
    """``unpack_logprobs`` with the ranks."""
    entries = unpack_logprobs(packed, token_ids)
    for entry, rank in zip(entries, unpack_ids(packed.ranks), strict=False):
        entry.rank = rank
    return entries


def _finite(value: float) -> float:
    return value if value > MIN_LOGPROB else MIN_LOGPROB
