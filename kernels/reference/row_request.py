"""One sampled row's parameters as Python values, so that the sampler can skip what the row does not ask for."""

from dataclasses import dataclass
from itertools import pairwise

from kernels.ops import SampleRows

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class RowRequest:
    """The fields of ``SampleRows`` for one row; spans are ranges of the sparse lists."""

    slot: int
    position: int
    num_prompt_tokens: int
    stream: int
    seed: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    bias: Span
    bans: Span
    allowed: Span
    bad_words: Span
    bitmask_row: int

    @property
    def has_penalties(self) -> bool:
        """Whether the tokens so far matter."""
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0

    @property
    def is_adjusted(self) -> bool:
        """Whether the logits differ from the raw ones."""
        spans = (self.bias, self.bans, self.allowed, self.bad_words)
        return self.has_penalties or self.bitmask_row >= 0 or any(start < end for start, end in spans)

    @property
    def is_filtered(self) -> bool:
        """Whether top_k, top_p or min_p may drop tokens."""
        return self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0


def split_rows(rows: SampleRows) -> list[RowRequest]:
    """The rows in order."""
    columns = (
        rows.slots,
        rows.positions,
        rows.num_prompt_tokens,
        rows.streams,
        rows.seeds,
        rows.temperature,
        rows.top_k,
        rows.top_p,
        rows.min_p,
        rows.presence_penalty,
        rows.frequency_penalty,
        rows.repetition_penalty,
    )
    offsets = (rows.bias_offsets, rows.ban_offsets, rows.allowed_offsets, rows.bad_word_row_offsets)
    values = [column.tolist() for column in columns]
    spans = [pairwise(offset.tolist()) for offset in offsets]
    return [RowRequest(*row) for row in zip(*values, *spans, rows.bitmask_rows.tolist(), strict=True)]
