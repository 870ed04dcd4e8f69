"""Sequences made by hand."""

from engine_core.scheduler.stopping import output_limit
from engine_core.sequence import Request, Sequence
from ipc.params import SamplingParams


def make_sequence(
    request_id: int = 1,
    num_prompt_tokens: int = 3,
    output: tuple[int, ...] = (),
    params: SamplingParams = SamplingParams(),  # noqa: B008 - immutable
    *,
    arrival_ns: int = 0,
    priority: int = 0,
    tenant: str = "",
    weight: float = 1.0,
    deadline_ns: int = 0,
    choice: int = 0,
    max_model_len: int = 64,
) -> Sequence:
    """The only choice of its request; its prompt is 100, 101, and so on."""
    request = Request(
        request_id,
        b"",
        arrival_ns,
        params,
        num_prompt_tokens,
        priority=priority,
        tenant=tenant,
        weight=weight,
        deadline_ns=deadline_ns,
        stop_set=params.stop_set,
    )
    seq = Sequence(request, choice, [*range(100, 100 + num_prompt_tokens), *output])
    seq.output_limit = output_limit(request, max_model_len)
    request.sequences.append(seq)
    return seq
