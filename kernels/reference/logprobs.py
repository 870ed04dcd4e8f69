"""Log-softmax of raw logits, ranks and the most likely ids, row by row."""

import math

import torch
from torch import Tensor

from kernels.ops import Logprobs
from kernels.reference.elementwise import exp_nonpositive, log, tree_sum


def token_logprobs(logits: Tensor, ids: Tensor, num_top: int) -> Logprobs:
    """logits f32 [R, V], ids i64 [R]. A row with NaN or +inf, or with −inf alone, gets NaN logprobs."""
    num_rows, num_ids = logits.shape
    num_top = min(num_top, num_ids)
    chosen = logits.gather(1, ids.unsqueeze(1))
    ranks = (logits > chosen).sum(dim=1).add_(1)
    top_ids = ids.new_empty(num_rows, num_top)
    log_totals = logits.new_empty(num_rows, 1)
    largest = logits.amax(dim=1, keepdim=True)
    for row in range(num_rows):
        weights = exp_nonpositive(logits[row] - largest[row])
        log_totals[row] = log(tree_sum(weights))
        top_ids[row] = most_likely(logits[row], num_top)
    logprobs = (chosen - largest).sub_(log_totals).squeeze(1)
    top_logprobs = (logits.gather(1, top_ids) - largest).sub_(log_totals)
    return Logprobs(logprobs, ranks, top_ids, top_logprobs)


def most_likely(logits: Tensor, count: int) -> Tensor:
    """The ids of the ``count`` largest logits, largest first, lower id first on ties. NaN counts as −inf."""
    if count == 0:
        return torch.empty(0, dtype=torch.int64, device=logits.device)
    logits = logits.nan_to_num(-math.inf, math.inf, -math.inf)
    threshold = logits.topk(count, sorted=False).values.amin()
    candidates = (logits >= threshold).nonzero().squeeze(1)
    order = logits[candidates].sort(descending=True, stable=True).indices
    return candidates[order[:count]]
