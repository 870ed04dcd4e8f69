"""Drawing a token per row by Gumbel-max (design 7.4). Rows are drawn one by one: none can see another."""

import math

import torch
from torch import Tensor

from kernels.ops import SampleRows, Samples
from kernels.reference.adjustments import adjust
from kernels.reference.filters import drop_unlikely
from kernels.reference.logprobs import token_logprobs
from kernels.reference.philox import all_token_words, log_exponential, some_token_words
from kernels.reference.row_request import RowRequest, split_rows

LOWEST_TEMPERATURE = 0.01
FLOAT32_MAX = torch.finfo(torch.float32).max
NOISE_RANGE = 27.0  # −ln E lies between −3.2 and 22.9: no token so far below the largest can win
SPARSE_SHARE = 8  # one Philox call serves four ids, so few ids are drawn alone only when they are few


def sample(logits: Tensor, tokens: Tensor, rows: SampleRows) -> Samples:
    """logits f32 [R, V], not changed. An invalid row gets token 0."""
    num_ids = min(rows.num_token_ids, logits.shape[1])
    is_finite = logits.amax(dim=1).isfinite().tolist()
    drawn = [-1] * logits.shape[0]
    for index, row in enumerate(split_rows(rows)):
        if is_finite[index]:
            drawn[index] = sample_row(logits[index, :num_ids], tokens, rows, row)
    result = torch.tensor(drawn, dtype=torch.int64, device=logits.device)
    is_valid = result >= 0
    result.clamp_(min=0)
    wanted = rows.num_logprobs
    return Samples(result, is_valid, token_logprobs(logits, result, wanted) if wanted >= 0 else None)


def sample_row(logits: Tensor, tokens: Tensor, rows: SampleRows, row: RowRequest) -> int:
    """The row's token, or −1 if nothing is left to draw."""
    if row.is_adjusted:
        logits = logits.clone()
        adjust(logits, tokens, rows, row)
    if row.temperature > 0:
        return draw(logits, row)
    token = logits.argmax()  # the first of equals
    return int(token) if logits[token] > -math.inf else -1


def draw(logits: Tensor, row: RowRequest) -> int:
    """argmax of logit / T − ln E over the kept tokens, or −1."""
    scaled = logits.div(max(row.temperature, LOWEST_TEMPERATURE)).clamp_(max=FLOAT32_MAX)
    if row.is_filtered:
        drop_unlikely(scaled, row.top_k, row.top_p, row.min_p)
    largest = float(scaled.amax())
    if largest == -math.inf:
        return -1
    # The second term covers rounding where logits are so large that 27 is a few units in the last place.
    candidates = (scaled >= largest - NOISE_RANGE - abs(largest) * 2.0**-20).nonzero().squeeze(1)
    key = (row.position, row.stream, row.seed)
    if len(candidates) * SPARSE_SHARE > len(scaled):
        words = all_token_words(len(scaled), *key, scaled.device)
        return int((scaled - log_exponential(words)).argmax())
    noise = log_exponential(some_token_words(candidates, *key))
    return int(candidates[(scaled[candidates] - noise).argmax()])
