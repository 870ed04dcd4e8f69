"""When a sequence ends by its own tokens. Stop strings are text and the gateway's."""

from engine_core.sequence import Request, Sequence
from ipc.messages import FinishReason


def output_limit(request: Request, max_model_len: int) -> int:
    """Most output tokens that a choice of the request may have."""
    return min(request.params.max_tokens, max_model_len - request.num_prompt_tokens)


def finish_reason(seq: Sequence) -> FinishReason | None:
    """Why the sequence ends with its newest known token; None if it goes on."""
    request, token_ids = seq.request, seq.token_ids
    num_output = len(token_ids) - request.num_prompt_tokens
    if num_output > 0 and token_ids[-1] in request.stop_set and num_output > request.params.min_tokens:
        return FinishReason.STOP
    return FinishReason.LENGTH if num_output >= seq.output_limit else None


def stop_token_id(seq: Sequence) -> int | None:
    """The request's own stop id that ended the sequence; None for the model's EOS."""
    params = seq.request.params
    last = seq.token_ids[-1]
    return last if last in params.stop_token_ids and last not in params.eos_token_ids else None
