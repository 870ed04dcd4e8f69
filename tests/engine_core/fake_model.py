"""A model without tensors: what it says next is a hash of all tokens before, the seed and the stream.

Whoever knows a request can compute its whole output here, without a scheduler and without a device: the oracle.
"""

from dataclasses import dataclass

from engine_core.sequence import GrammarError
from engine_core.step import SlotBinding
from ipc.messages import FinishReason
from ipc.params import BeamParams, SamplingParams

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


def most_likely(prefix: int, count: int) -> list[tuple[int, float]]:
    """(id, log-probability) of the most likely tokens after ``prefix``, lower ids first among equals, of which there
    are many. They are float32, and have nothing to do with what ``draw`` says."""
    logprobs = [-(extend(prefix, 1000 + token_id) % 24) / 8 for token_id in range(VOCAB_SIZE)]
    return sorted(enumerate(logprobs), key=lambda entry: -entry[1])[:count]


def breaks_at(params: SamplingParams) -> int | None:
    """The index of the output token whose logits are NaN: the fake model reads it from the bias of token 0."""
    return next((int(bias) for token_id, bias in params.logit_bias if token_id == 0), None)


class AlternatingGrammar:
    """Even ids at even places, odd ids at odd ones. Complains when it is not told every token in order.

    ``length``: complete after so many tokens; ``breaks_at``: cannot go on after so many.
    """

    def __init__(self, length: int | None = None, breaks_at: int | None = None) -> None:
        self.num_accepted = 0
        self.length, self.breaks_at = length, breaks_at

    def allowed(self) -> list[int]:
        """The ids that may come next."""
        return list(range(self.num_accepted % 2, VOCAB_SIZE, 2))

    def accept(self, token_ids: tuple[int, ...]) -> None:
        for token_id in token_ids:
            assert token_id in self.allowed(), f"{token_id} at place {self.num_accepted}"
            self.num_accepted += 1

    @property
    def is_complete(self) -> bool:
        return self.num_accepted == self.length

    def mask(self) -> bytes:
        if self.num_accepted == self.breaks_at:
            raise GrammarError("it is too complex")
        return sum(1 << token_id for token_id in self.allowed()).to_bytes(4, "little")


def make_grammar(source: str) -> AlternatingGrammar:
    """From "length=3" or "breaks_at=2"; any other text: without an end."""
    name, found, number = source.partition("=")
    return AlternatingGrammar(**({name: int(number)} if found else {}))


def read_mask(mask: bytes) -> list[int]:
    """The ids that a mask allows."""
    bits = int.from_bytes(mask, "little")
    return [token_id for token_id in range(len(mask) * 8) if bits >> token_id & 1]


@dataclass(frozen=True, slots=True)
class Expected:
    """All that one choice will say. ``finish`` None: its request fails when it comes to the end of these."""

    token_ids: list[int]
    finish: FinishReason | None
    logprobs: list[float] | None = None  # else they are the tokens' positions


def generate(prompt_ids: list[int], params: SamplingParams, stream: int, grammar_source: str | None = None) -> Expected:
    """The oracle: one token after the other."""
    grammar = None if grammar_source is None else make_grammar(grammar_source)
    output: list[int] = []
    while len(output) < params.max_tokens:
        if breaks_at(params) == len(output) or (grammar and grammar.breaks_at == len(output)):
            return Expected(output, None)
        allowed = grammar.allowed() if grammar else None
        token_id = draw(hash_prefix(prompt_ids + output), params.seed, stream, allowed)
        output.append(token_id)
        if grammar:
            grammar.accept((token_id,))
            if grammar.is_complete:
                return Expected(output, FinishReason.STOP)
        if token_id in params.stop_set and len(output) > params.min_tokens:
            return Expected(output, FinishReason.STOP)
    return Expected(output, FinishReason.LENGTH)


def search(prompt_ids: list[int], params: SamplingParams, beam: BeamParams, n: int) -> list[Expected]:
    """The oracle of beam search: vLLM's, step for step and without an early end."""

    def score(entry: tuple[list[int], list[float], FinishReason]) -> float:
        token_ids, logprobs, finish = entry
        length = len(prompt_ids) + len(token_ids) - (finish is FinishReason.STOP)
        return -sum(logprobs) / max(1, length) ** beam.length_penalty  # an empty prompt is refused

    live, completed = [([], [], FinishReason.LENGTH)], []
    for _ in range(params.max_tokens):
        found = []
        for token_ids, logprobs, _ in live:
            for token_id, logprob in most_likely(hash_prefix(prompt_ids + token_ids), 2 * beam.width):
                finish = FinishReason.STOP if token_id in params.stop_set else FinishReason.LENGTH
                found.append(([*token_ids, token_id], [*logprobs, logprob], finish))
        completed += [entry for entry in found if entry[2] is FinishReason.STOP]
        going = [entry for entry in found if entry[2] is FinishReason.LENGTH]
        live = sorted(going, key=lambda entry: -sum(entry[1]))[: beam.width]
    best = sorted(completed + live, key=score)[:n]
    return [Expected(token_ids, finish, logprobs) for token_ids, logprobs, finish in best]


def breaks_here(binding: SlotBinding, position: int) -> bool:
    """Whether the logits for the token at ``position`` are NaN."""
    return breaks_at(binding.params) == position - binding.num_prompt_tokens
