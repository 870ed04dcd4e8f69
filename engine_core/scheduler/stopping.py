"""Takes in new tokens, and says when a sequence ends by them. Stop strings are text and the gateway's."""

from engine_core.sequence import Request, Sequence
from ipc.messages import FinishReason


def output_limit(request: Request, max_model_len: int) -> int:
    """Most output tokens that a choice of the request may have."""
    return min(request.params.max_tokens, max_model_len - request.num_prompt_tokens)


def take_tokens(
    seq: Sequence, token_ids: tuple[int, ...], is_prompt_done: bool
) -> tuple[tuple[int, ...], FinishReason | None]:
    """Append tokens until one ends the sequence: (those, why it ends). Without tokens only a prompt that is done now
    can end it (max_tokens 0). Raises GrammarError."""
    finish = finish_reason(seq) if is_prompt_done and not token_ids else None
    num_taken = 0
    for token_id in token_ids:
        seq.token_ids.append(token_id)
        num_taken += 1
        finish = finish_reason(seq)
        if seq.grammar is not None:
            seq.grammar.accept((token_id,))
            if seq.grammar.is_complete:
                finish = FinishReason.STOP
        if finish is not None:
            break
    return token_ids[:num_taken], finish


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
