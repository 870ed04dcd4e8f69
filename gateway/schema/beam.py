"""``use_beam_search`` and ``length_penalty``: what they ask for, and the fields that do not go with them.

vLLM ignores those; here they are refused (contract 6). The model's own sampling defaults have no effect either. The
usage counts the tokens of the choices that are returned, not those of beams that were given up.
"""

from gateway.schema.common import GenerationFields
from gateway.schema.sampling import Range
from gateway.schema.structured import GrammarRequest
from ipc.errors import RequestError
from ipc.params import MAX_BEAM_WIDTH, BeamParams

LENGTH_PENALTY = Range(-10.0, 10.0)
NEUTRAL: dict[str, tuple[object, ...]] = {
    "temperature": (0, 1),
    "top_k": (-1, 0),
    "top_p": (1,),
    "min_p": (0,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "logit_bias": ({},),
    "seed": (),
    "min_tokens": (0,),
    "stop": ([],),
    "allowed_token_ids": (),
    "bad_words": ([],),
}
"""What a beam search has no use for, with the values that ask for nothing."""


def requested_beam(
    request: GenerationFields, grammar: GrammarRequest | None, best_of: int | None = None
) -> BeamParams | None:
    """The beam search, if the request wants one: ``best_of`` beams, else n. Raises RequestError naming the field."""
    penalty = 1.0 if request.length_penalty is None else request.length_penalty
    if not request.use_beam_search:
        if penalty != 1:
            raise RequestError("length_penalty needs use_beam_search", param="length_penalty")
        return None
    LENGTH_PENALTY.check("length_penalty", penalty)
    if request.is_stream:
        text = "use_beam_search does not go with stream: the answer is known at the end"
        raise RequestError(text, param="use_beam_search")
    clashing = [name for name, values in NEUTRAL.items() if getattr(request, name) not in (None, *values)]
    if grammar is not None:
        clashing.append(grammar.param)
    if clashing:
        raise RequestError(f"{clashing[0]} does not go with use_beam_search", param=clashing[0])
    if request.requested_max_tokens == 0:
        name = request.max_tokens_name
        raise RequestError(f"{name} must be at least 1 with use_beam_search", param=name)
    name, width = ("n", 1 if request.n is None else request.n) if best_of is None else ("best_of", best_of)
    if width > MAX_BEAM_WIDTH:
        raise RequestError(f"{name} must be at most {MAX_BEAM_WIDTH} with use_beam_search", param=name)
    return BeamParams(width, float(penalty))
