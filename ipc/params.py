"""The engine's part of a request's sampling parameters, as it crosses the wire.

Owns the fields and nothing else: ranges are checked by the gateway, which knows the client's field
names. Free text (stop strings, bad words as text) stays in the gateway; bad words cross as id lists.
"""

import msgspec

MAX_BEAM_WIDTH = 64
"""A beam step asks for the log-probabilities of twice as many tokens a beam."""


class BeamParams(msgspec.Struct, array_like=True, gc=False, frozen=True):
    """Beam search instead of drawing tokens: ``width`` beams, scored as ``engine_core.beam`` says."""

    width: int
    length_penalty: float = 1.0


class SamplingParams(msgspec.Struct, array_like=True, gc=False, frozen=True):
    """How the tokens of one request are drawn (design 7.4). Fields are only ever appended.

    ``seed`` is resolved: an unseeded request gets one at the gateway. ``num_logprobs`` is −1 for none,
    0 for the sampled token alone, k for the k most likely besides. ``max_tokens`` is resolved too.
    """

    temperature: float = 1.0
    top_k: int = 0  # 0: off
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0  # u64
    max_tokens: int = 16
    min_tokens: int = 0
    eos_token_ids: tuple[int, ...] = ()  # the model's; empty with ignore_eos
    stop_token_ids: tuple[int, ...] = ()  # the request's own
    num_logprobs: int = -1
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed_token_ids: tuple[int, ...] = ()  # empty: all
    bad_words: tuple[tuple[int, ...], ...] = ()

    @property
    def stop_set(self) -> frozenset[int]:
        """Ids that end a sequence."""
        return frozenset(self.eos_token_ids + self.stop_token_ids)
