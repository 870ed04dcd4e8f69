"""``best_of``: which of the generated choices are the answer."""

from collections.abc import Sequence
from dataclasses import replace

from gateway.routes.generate import ChoiceResult


def keep_best(results: Sequence[ChoiceResult], num_kept: int) -> list[ChoiceResult]:
    """Of each prompt the ``num_kept`` with the highest mean log-probability, best first, numbered anew.

    ``results`` are ordered by prompt and have log-probabilities; of equal ones the earlier wins.
    """
    by_prompt: dict[int, list[ChoiceResult]] = {}
    for result in results:
        by_prompt.setdefault(result.prompt_index, []).append(result)
    kept: list[ChoiceResult] = []
    for group in by_prompt.values():
        for result in sorted(group, key=_mean_logprob, reverse=True)[:num_kept]:
            kept.append(replace(result, index=len(kept)))
    return kept


def _mean_logprob(result: ChoiceResult) -> float:
    return sum(entry.logprob for entry in result.logprobs) / max(len(result.logprobs), 1)
