"""A model without tensors: what it says next is a hash of all tokens before, the seed and the stream.

Whoever knows a request can compute its whole output here, without a scheduler and without a device: the oracle.
"""

from dataclasses import dataclass

from engine_core.step import SlotBinding
from ipc.messages import FinishReason
from ipc.params import SamplingParams

VOCAB_SIZE = 12
NO_PREFIX = 0x51ED270B
_U64 = 2**64 - 1


def extend(prefix: int, token_id: int) -> int:
    """The hash of a prefix and one more token."""
    mixed = ((prefix ^ (token_id + 1)) * 0x9E3779B97F4A7C15) & _U64
    return mixed ^ (mixed >> 29)


def hash_prefix(token_ids: list[int]) -> int:
    """The hash of all of them."""
    prefix = NO_PREFIX
    for token_id in token_ids:
        prefix = extend(prefix, token_id)
    return prefix


def draw(prefix: int, seed: int, stream: int, allowed: list[int] | None = None) -> int:
    """The token that follows ``prefix``. Stop ids come as they come: ignoring early ones is the scheduler's job."""
    choices = range(VOCAB_SIZE) if allowed is None else allowed
    return choices[extend(extend(prefix, seed), stream) % len(choices)]


def breaks_at(params: SamplingParams) -> int | None:
    """The index of the output token whose logits are NaN: the fake model reads it from the bias of token 0."""
    return next((int(bias) for token_id, bias in params.logit_bias if token_id == 0), None)


class AlternatingGrammar:
    """Even ids at even places, odd ids at odd ones. Complains when it is not told every token in order."""

    def __init__(self) -> None:
        self.num_accepted = 0

    def allowed(self) -> list[int]:
        """The ids that may come next."""
        return list(range(self.num_accepted % 2, VOCAB_SIZE, 2))

    def accept(self, token_ids: tuple[int, ...]) -> None:
        for token_id in token_ids:
            assert token_id in self.allowed(), f"{token_id} at place {self.num_accepted}"
            self.num_accepted += 1

    def mask(self) -> bytes:
        return sum(1 << token_id for token_id in self.allowed()).to_bytes(4, "little")


def read_mask(mask: bytes) -> list[int]:
    """The ids that a mask allows."""
    bits = int.from_bytes(mask, "little")
    return [token_id for token_id in range(len(mask) * 8) if bits >> token_id & 1]


@dataclass(frozen=True, slots=True)
class Expected:
    """All that one choice will say. ``finish`` None: its request fails when it comes to the end of these."""

    token_ids: list[int]
    finish: FinishReason | None


def generate(prompt_ids: list[int], params: SamplingParams, stream: int, *, has_grammar: bool = False) -> Expected:
    """The oracle: one token after the other."""
    grammar = AlternatingGrammar() if has_grammar else None
    output: list[int] = []
    while len(output) < params.max_tokens:
        if breaks_at(params) == len(output):
            return Expected(output, None)
        allowed = grammar.allowed() if grammar else None
        token_id = draw(hash_prefix(prompt_ids + output), params.seed, stream, allowed)
        output.append(token_id)
        if grammar:
            grammar.accept((token_id,))
        if token_id in params.stop_set and len(output) > params.min_tokens:
            return Expected(output, FinishReason.STOP)
    return Expected(output, FinishReason.LENGTH)


def breaks_here(binding: SlotBinding, position: int) -> bool:
    """Whether the logits for the token at ``position`` are NaN."""
    return breaks_at(binding.params) == position - binding.num_prompt_tokens
