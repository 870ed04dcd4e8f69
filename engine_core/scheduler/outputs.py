"""What the scheduler tells gateways about a sequence."""

import msgspec

from engine_core.sequence import Request, Sequence
from engine_core.step import SequenceOutput, StepFailure
from ipc.codec import join_logprobs, pack_ids
from ipc.messages import Failed, FinishReason, Output


class Reply(msgspec.Struct, frozen=True, gc=False):
    """A message for the gateway that owns the request."""

    owner: bytes
    message: Output | Failed


def make_output(
    seq: Sequence,
    token_ids: tuple[int, ...],
    output: SequenceOutput,
    finish: FinishReason | None,
    stop_token_id: int | None,
) -> Reply:
    """One step's news of one sequence; its unsent events and its prompt's log-probabilities go along, with the last
    one what the sequence has cost."""
    request, prompt_logprobs = seq.request, None
    if (
        request.num_prompt_logprobs >= 0
        and seq.has_prompt_logprobs_to_compute
        and _are_prompt_logprobs_complete(request)
    ):
        prompt_logprobs = join_logprobs(request.num_prompt_logprobs, request.prompt_logprobs)
        request.is_prompt_sent = True
    message = Output(
        request_id=request.request_id,
        choice=seq.choice,
        token_ids=pack_ids(token_ids),
        logprobs=output.logprobs,
        finish=finish,
        stop_token_id=stop_token_id,
        events=seq.take_events() if seq.events else (),
        num_cached_tokens=seq.num_cached_tokens,
        prompt_logprobs=prompt_logprobs,
        device_ns=0 if finish is None else round(seq.device_ns),
        kv_block_ns=0 if finish is None else seq.kv_block_ns,
    )
    return Reply(request.owner, message)


def _are_prompt_logprobs_complete(request: Request) -> bool:
    """Whether all chunks are known: a prompt that is aborted half-way has nothing to show."""
    num_bytes = sum(len(part.logprobs) for part in request.prompt_logprobs)
    return bool(request.prompt_logprobs) and num_bytes == 4 * (request.num_prompt_tokens - 1)


def make_failure(request: Request, code: str, text: str) -> Reply:
    """The whole request failed."""
    return Reply(request.owner, Failed(request.request_id, -1, code, text))


def why_it_failed(seq: Sequence, failure: StepFailure) -> tuple[str, str]:
    """Code and text of the failure. Where the request forbids ids, what is left may be none."""
    if failure is StepFailure.OUT_OF_MEMORY:
        return "out_of_memory", "the device had too little memory left to compute this request"
    params = seq.request.params
    if seq.grammar is not None or params.allowed_token_ids or params.bad_words:
        return "no_token_left", "what the request allows leaves no token that may come next"
    return "corrupt_logits", "the model produced NaN or infinite logits for this request"
