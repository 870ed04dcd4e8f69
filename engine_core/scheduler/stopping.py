"""When a sequence ends by its own tokens. Stop strings are text and the gateway's."""

from engine_core.sequence import Sequence
from ipc.messages import FinishReason


def output_limit(seq: Sequence, max_model_len: int) -> int:
    """Most output tokens that the sequence may have."""
    return min(seq.request.params.max_tokens, max_model_len - seq.num_prompt_tokens)


def finish_reason(seq: Sequence, max_model_len: int) -> FinishReason | None:
    """Why the sequence ends with its newest known token; None if it goes on."""
    if (
        seq.num_output_tokens > 0
        and seq.token_ids[-1] in seq.request.stop_set
        and seq.num_output_tokens > seq.request.params.min_tokens
    ):
        return FinishReason.STOP
    if seq.num_output_tokens >= output_limit(seq, max_model_len):
        return FinishReason.LENGTH
    return None


def stop_token_id(seq: Sequence) -> int | None:
    """The request's own stop id that ended the sequence; None for the model's EOS."""
    params = seq.request.params
    last = seq.token_ids[-1]
    return last if last in params.stop_token_ids and last not in params.eos_token_ids else None
