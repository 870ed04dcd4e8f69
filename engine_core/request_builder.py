"""From the wire's ``Add`` to a ``Request`` with its sequences.

Checks what would hurt the engine; what a client may ask for was checked by the gateway, which can name the field.
"""

from collections.abc import Callable
from math import inf

from engine_core.channel import UnfitRequest
from engine_core.kv_cache.prefix_cache import extra_keys
from engine_core.sequence import Request, Sequence
from ipc.codec import unpack_ids
from ipc.messages import Add
from ipc.params import MAX_BEAM_WIDTH, BeamParams

RequestBuilder = Callable[[bytes, Add], Request | UnfitRequest]
HashExtender = Callable[[list[bytes], list[int], bytes], None]


class AddReader:
    """Callable: (owner, message) → Request, or why it cannot be one. ``vocab_size`` bounds every id.

    Runs on the socket thread, so that hashing a long prompt does not hold the busy loop up: it may call only
    what changes nothing, such as ``KVCacheManager.extend_hashes``.
    """

    def __init__(self, vocab_size: int, extend_hashes: HashExtender) -> None:
        self._vocab_size = vocab_size
        self._extend_hashes = extend_hashes

    def __call__(self, owner: bytes, message: Add) -> Request | UnfitRequest:
        try:
            prompt_ids = unpack_ids(message.prompt_ids)
            outputs = [(choice, unpack_ids(output)) for choice, output in message.choices]
        except ValueError:
            return UnfitRequest(message.request_id, "packed token ids end in the middle of one")
        problem = self._problem(message, prompt_ids + [token_id for _, ids in outputs for token_id in ids])
        if problem is not None:
            return UnfitRequest(message.request_id, problem)
        params = message.params
        request = Request(
            request_id=message.request_id,
            owner=owner,
            arrival_ns=message.arrival_ns,
            params=params,
            num_prompt_tokens=len(prompt_ids),
            priority=message.priority,
            tenant=message.tenant,
            weight=message.weight,
            deadline_ns=message.deadline_ns,
            is_resumed=message.is_resumed,
            num_prompt_logprobs=message.num_prompt_logprobs,
            extra_keys=extra_keys(adapter=message.adapter, salt=message.cache_salt),
            stop_set=params.stop_set,
            grammar=message.grammar,
            beam=message.beam,
        )
        for choice, output_ids in outputs:
            request.sequences.append(Sequence(request, choice, prompt_ids + output_ids))
        first = request.sequences[0]
        self._extend_hashes(first.block_hashes, first.token_ids, request.extra_keys)
        return request

    def _problem(self, message: Add, token_ids: list[int]) -> str | None:
        params = message.params
        ids = [
            *token_ids,
            *params.allowed_token_ids,
            *params.stop_set,
            *(token_id for token_id, _ in params.logit_bias),
        ]
        for word in params.bad_words:
            ids.extend(word)
        if ids and not 0 <= min(ids) <= max(ids) < self._vocab_size:
            return f"a token id lies outside the vocabulary of {self._vocab_size}"
        if not message.choices or len({choice for choice, _ in message.choices}) != len(message.choices):
            return "choices are missing or repeated"
        if not 0 < message.weight < inf:
            return f"a weight of {message.weight} is no share"
        if message.adapter:
            return "this engine serves no adapters"
        return None if message.beam is None else _beam_problem(message, message.beam)


def _beam_problem(message: Add, beam: BeamParams) -> str | None:
    if not len(message.choices) <= beam.width <= MAX_BEAM_WIDTH:
        return f"a beam search for {len(message.choices)} choices cannot have {beam.width} beams"
    if message.grammar is not None or message.params.max_tokens < 1 or any(output for _, output in message.choices):
        return "a beam search has no grammar, has tokens to find, and starts over"
    return None
