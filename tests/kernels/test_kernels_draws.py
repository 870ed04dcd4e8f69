"""Draws follow the softmax: chi-square tests against float64 probabilities. Seeds are fixed, so is the outcome."""

from dataclasses import replace

import kernel_oracles as oracle
import pytest
import scipy.stats
import torch
from kernel_cases import is_interpreted, make_rows
from torch import Tensor

from kernels.ops import Ops, SampleKinds, load

NUM_DRAWS = 1200
INTERPRETED_DRAWS = range(97, NUM_DRAWS, 500)
LOGITS = torch.tensor([0.1, 2.0, -1.0, 1.2, 0.0, 0.7, -3.0, 1.9, 0.3, -0.4, 1.1, -2.2, 0.9])


def draw(ops: Ops, request: dict[str, float], **columns: Tensor) -> Tensor:
    """A backend's draws. Triton's interpreter would take minutes: the reference's, and some of its own are the same."""
    requests = [request | {name: int(column[i]) for name, column in columns.items()} for i in range(NUM_DRAWS)]
    if not is_interpreted(ops):
        return draw_all(ops, requests)
    drawn = draw_all(load("reference"), requests)
    some = draw_all(ops, [requests[index] for index in INTERPRETED_DRAWS])
    assert torch.equal(some, drawn[list(INTERPRETED_DRAWS)])
    return drawn


def draw_all(ops: Ops, requests: list[dict[str, float]]) -> Tensor:
    is_filtered = any(name in request for request in requests for name in ("top_k", "top_p", "min_p"))
    kinds = SampleKinds(draws=True, penalties=False, lists=False, filters=is_filtered)
    rows = replace(make_rows(requests, len(LOGITS)), kinds=kinds)
    return ops.sample(LOGITS.repeat(len(requests), 1), torch.zeros(1, 4, dtype=torch.int32), rows).token_ids


def assert_follows(drawn: Tensor, probabilities: Tensor) -> None:
    counts = torch.bincount(drawn, minlength=len(LOGITS)).double()
    assert counts[probabilities == 0].sum() == 0
    possible = probabilities > 0
    result = scipy.stats.chisquare(counts[possible].numpy(), (probabilities[possible] * NUM_DRAWS).numpy())
    assert result.pvalue > 1e-3


@pytest.mark.parametrize(
    "request_fields",
    [
        {"temperature": 0.5},
        {"temperature": 2.0},
        {"temperature": 1.0, "top_k": 5},
        {"temperature": 1.0, "top_p": 0.8},
        {"temperature": 1.5, "min_p": 0.2},
        {"temperature": 0.8, "top_k": 8, "top_p": 0.9, "min_p": 0.05},
    ],
    ids=str,
)
def test_draws_over_positions_follow_the_softmax(ops: Ops, request_fields: dict[str, float]) -> None:
    drawn = draw(ops, request_fields, positions=torch.arange(NUM_DRAWS), seeds=torch.full((NUM_DRAWS,), 17))
    fields = dict(request_fields)
    scaled = LOGITS.double() / fields.pop("temperature")
    kept = sorted(oracle.kept_tokens(scaled.tolist(), **fields))  # type: ignore[arg-type]
    probabilities = torch.zeros(len(LOGITS), dtype=torch.float64)
    probabilities[kept] = scaled[kept].softmax(0)
    assert_follows(drawn, probabilities)


@pytest.mark.parametrize("column", ["seeds", "streams"])
def test_draws_over_seeds_and_streams_follow_the_softmax(ops: Ops, column: str) -> None:
    drawn = draw(ops, {"temperature": 1.0}, **{column: torch.arange(NUM_DRAWS)})
    assert_follows(drawn, LOGITS.double().softmax(0))


def test_neighbouring_positions_and_streams_are_independent(ops: Ops) -> None:
    """Contingency tables of draws one position, and one stream, apart."""
    index = torch.arange(NUM_DRAWS)
    drawn = draw(ops, {"temperature": 1.0}, positions=index, seeds=torch.full_like(index, 5))
    other = draw(ops, {"temperature": 1.0}, positions=index, seeds=torch.full_like(index, 5), streams=index * 0 + 1)
    common = LOGITS.topk(4).indices
    for first, second in ((drawn[:-1], drawn[1:]), (drawn, other)):
        table = torch.tensor([[int(((first == a) & (second == b)).sum()) for a in common] for b in common])
        assert scipy.stats.chi2_contingency(table.numpy()).pvalue > 1e-3
