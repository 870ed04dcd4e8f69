"""``prompt_logprobs`` of a response, in vLLM's shape: an entry a prompt token, its alternatives by token id."""

from collections.abc import Sequence

import msgspec

from gateway.logprobs import TokenLogprob
from gateway.text.tokenizer import Tokenizer


class PromptLogprob(msgspec.Struct):
    """One token at one position of the prompt. ``rank``: 1 is the most likely."""

    logprob: float
    rank: int
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprob] | None]
"""The first position has null: nothing comes before it."""


def format_prompt_logprobs(tokenizer: Tokenizer, entries: Sequence[TokenLogprob], num_top: int) -> PromptLogprobs:
    """``entries`` (positions 1 …) as clients see them: the prompt's own token, then the ``num_top`` most likely."""
    positions: PromptLogprobs = [None]
    for entry in entries:
        shown = {str(entry.token_id): PromptLogprob(entry.logprob, entry.rank, tokenizer.token_text(entry.token_id))}
        for rank, (token_id, logprob) in enumerate(entry.top[:num_top], 1):
            if token_id != entry.token_id and tokenizer.has_token(token_id):
                shown[str(token_id)] = PromptLogprob(logprob, rank, tokenizer.token_text(token_id))
        positions.append(shown)
    return positions
