"""From ``GenerationParams`` to the engine's ``SamplingParams``: all that needs the prompt's length, the
vocabulary or the model's defaults. Precedence: request, then the model's defaults, then octavo's own.
"""

import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from gateway.schema.sampling import GenerationParams
from ipc.errors import RequestError
from ipc.messages import Ready
from ipc.params import SamplingParams

COMPLETION_MAX_TOKENS = 16
"""OpenAI's default of /v1/completions; chat's is what the context leaves."""

MIN_TEMPERATURE = 0.01
"""A temperature above 0 and below this counts as this (design 7.4)."""

U64_MASK = 2**64 - 1

Number = TypeVar("Number", int, float)


class SamplingDefaults(Protocol):
    """The model's own defaults (generation_config.json); None where it has none."""

    @property
    def temperature(self) -> float | None: ...
    @property
    def top_k(self) -> int | None: ...
    @property
    def top_p(self) -> float | None: ...
    @property
    def min_p(self) -> float | None: ...
    @property
    def repetition_penalty(self) -> float | None: ...
    @property
    def max_new_tokens(self) -> int | None: ...
    @property
    def eos_token_ids(self) -> tuple[int, ...]: ...


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """What the handshake and the server's configuration allow a request of one model."""

    max_model_len: int
    max_sequence_len: int
    num_token_ids: int
    max_logprobs: int

    @classmethod
    def of(cls, ready: Ready, max_logprobs: int) -> "ModelLimits":
        """The limits of a model that is served by the engine that said ``ready``."""
        return cls(ready.max_model_len, ready.max_sequence_len, ready.num_token_ids, max_logprobs)


def check_token_ids(name: str, ids: Iterable[int], limits: ModelLimits) -> None:
    """Raises RequestError naming ``name`` at the first id that has no token."""
    for token_id in ids:
        if not 0 <= token_id < limits.num_token_ids:
            raise RequestError(
                f"{name} holds {_bounded(token_id)}, but token ids are from 0 to {limits.num_token_ids - 1}", param=name
            )


def check_model_limits(params: GenerationParams, limits: ModelLimits, logprobs_name: str = "logprobs") -> None:
    """Every check against the model that needs no prompt. Raises RequestError naming the field."""
    check_token_ids("stop_token_ids", params.stop_token_ids or (), limits)
    check_token_ids("allowed_token_ids", params.allowed_token_ids or (), limits)
    check_token_ids("logit_bias", params.logit_bias or (), limits)
    for name, value in ((logprobs_name, params.logprobs), ("prompt_logprobs", params.prompt_logprobs)):
        if value is not None and value > limits.max_logprobs:
            raise RequestError(f"{name} must be at most {limits.max_logprobs}", param=name)


def too_long(limits: ModelLimits) -> str:
    """How every message begins that says so: LiteLLM and LangChain know it by these words, not by its code."""
    return f"prompt is too long: this model's maximum context length is {limits.max_model_len} tokens"


def resolve_max_tokens(
    requested: int | None,
    default: int | None,
    num_prompt_tokens: int,
    limits: ModelLimits,
    *,
    name: str = "max_tokens",
    prompt_name: str = "prompt",
) -> int:
    """How many tokens the request may produce.

    ``default`` None is the rest of the context. A default is cut to what fits; what the client asked for is
    not: prompt and output beyond the limit are a RequestError with both numbers.
    """
    if num_prompt_tokens == 0:
        raise RequestError(f"{prompt_name} has no tokens", param=prompt_name)
    limit = limits.max_sequence_len
    needed = num_prompt_tokens + (requested if requested is not None else 1)
    if needed > limits.max_model_len:
        output = f"{_bounded(requested)} of output" if requested is not None else "at least one of output"
        raise RequestError(
            f"{too_long(limits)}, but the request needs {_bounded(needed)}: {num_prompt_tokens} of prompt and {output}",
            param=prompt_name if num_prompt_tokens >= limits.max_model_len or requested is None else name,
            code="context_length_exceeded",
        )
    if needed > limit:
        raise RequestError(
            f"the server's KV cache holds {limit} tokens in all, but the request needs {_bounded(needed)}: "
            f"{num_prompt_tokens} of prompt and {requested if requested is not None else 1} of output",
            param=prompt_name if num_prompt_tokens >= limit or requested is None else name,
            code="kv_cache_capacity_exceeded",
        )
    rest = limit - num_prompt_tokens
    if requested is not None:
        return requested
    return rest if default is None else min(default, rest)


def resolve_sampling(
    params: GenerationParams,
    defaults: SamplingDefaults,
    limits: ModelLimits,
    max_tokens: int,
    encode_bad_words: Callable[[tuple[str, ...]], Iterable[Iterable[int]]],
) -> SamplingParams:
    """The engine's parameters: defaults filled in, an unseeded request seeded, ids where the user wrote text.

    ``params`` has passed ``check_model_limits``; ``max_tokens`` is ``resolve_max_tokens``'s.
    """
    if params.min_tokens > max_tokens:
        raise RequestError(
            f"min_tokens ({params.min_tokens}) must not exceed the {max_tokens} tokens that can be produced",
            param="min_tokens",
        )
    temperature = _first(params.temperature, defaults.temperature, 1.0)
    top_k = _first(params.top_k, defaults.top_k, 0)
    return SamplingParams(
        temperature=max(temperature, MIN_TEMPERATURE) if temperature > 0 else 0.0,
        top_k=min(top_k, limits.num_token_ids) if top_k > 0 else 0,
        top_p=_first(params.top_p, defaults.top_p, 1.0),
        min_p=_first(params.min_p, defaults.min_p, 0.0),
        presence_penalty=params.presence_penalty or 0.0,
        frequency_penalty=params.frequency_penalty or 0.0,
        repetition_penalty=_first(params.repetition_penalty, defaults.repetition_penalty, 1.0),
        seed=(secrets.randbits(64) if params.seed is None else params.seed) & U64_MASK,
        max_tokens=max_tokens,
        min_tokens=params.min_tokens,
        eos_token_ids=() if params.ignore_eos else tuple(defaults.eos_token_ids),
        stop_token_ids=tuple(params.stop_token_ids or ()),
        num_logprobs=-1 if params.logprobs is None else params.logprobs,
        logit_bias=tuple((token_id, float(value)) for token_id, value in (params.logit_bias or {}).items()),
        allowed_token_ids=tuple(params.allowed_token_ids or ()),
        bad_words=tuple(tuple(ids) for ids in encode_bad_words(tuple(params.bad_words or ()))),
    )


def _first(requested: Number | None, default: Number | None, own: Number) -> Number:
    return requested if requested is not None else (default if default is not None else own)


def _bounded(number: int) -> str:
    return str(number) if abs(number) < 10**30 else "a number beyond 64 bits"
