"""What chat and text completion requests share: the sampling fields, the fields without effect, usage.

Every optional field takes null and means "not given" by it. Unknown fields are refused (contract 6).
"""

from typing import Any, Literal

import msgspec

from gateway.schema.sampling import INT64_MAX, INT64_MIN, GenerationParams
from ipc.errors import RequestError

FinishReasonName = Literal["stop", "length", "abort"]

UNSUPPORTED: dict[str, tuple[object, ...]] = {
    "store": (None, False),
    "best_of": (None, 1),
    "use_beam_search": (None, False),
    "length_penalty": (None, 1, 1.0),
    "suffix": (None, ""),
    "tools": (None, []),
    "tool_choice": (None, "none"),
    "functions": (None, []),
    "function_call": (None, "none"),
    "response_format": (None, {"type": "text"}),
    "structured_outputs": (None, {}),
    "modalities": (None, ["text"]),
    "audio": (None, {}),
    "prediction": (None, {}),
    "web_search_options": (None,),
    "reasoning_effort": (None,),
    "verbosity": (None,),
    "documents": (None, []),
    "chat_template": (None,),
    "prompt_embeds": (None, []),
    "prompt_logprobs": (None,),
    "spaces_between_special_tokens": (None, True),
}
"""Known fields whose effect this server does not have, with the values that ask for no effect."""


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    """``include_usage``: one last chunk with the usage. ``continuous_usage_stats``: the usage in every chunk."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: Any = None


class GenerationFields(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Fields of every generating request. Types only: ``GenerationParams`` checks the ranges."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    min_tokens: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    add_special_tokens: bool | None = None
    priority: int | None = None
    cache_salt: str | None = None

    # Fields that have no effect by definition.
    user: str | None = None
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    safety_identifier: str | None = None

    # Fields of UNSUPPORTED that both kinds of request know.
    store: Any = None
    use_beam_search: Any = None
    length_penalty: Any = None
    response_format: Any = None
    structured_outputs: Any = None
    prompt_logprobs: Any = None
    spaces_between_special_tokens: Any = None

    @property
    def is_stream(self) -> bool:
        """Whether the answer is to come as server-sent events."""
        return bool(self.stream)

    @property
    def includes_usage(self) -> bool:
        """Whether the stream ends with a chunk that holds the usage."""
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def includes_continuous_usage(self) -> bool:
        """Whether every chunk holds the usage so far. It is part of ``include_usage``, as in vLLM."""
        return self.includes_usage and bool(self.stream_options and self.stream_options.continuous_usage_stats)

    @property
    def max_tokens_name(self) -> str:
        """The field that limits the output: ``max_completion_tokens`` wins."""
        return "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"

    @property
    def requested_max_tokens(self) -> int | None:
        """The limit that the client set, or None."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


def check_common(request: GenerationFields, *, accepts_priority: bool, min_max_tokens: int) -> None:
    """The checks that belong to no sampling parameter. Raises RequestError naming the field."""
    for name in request.__struct_fields__:
        if name in UNSUPPORTED and not _asks_nothing(getattr(request, name), UNSUPPORTED[name]):
            raise RequestError(f"{name} is not supported by this server", param=name, code="unsupported_parameter")
    if request.stream_options is not None:
        if not request.is_stream:
            raise RequestError("stream_options is only allowed when stream is true", param="stream_options")
        if request.stream_options.include_obfuscation:
            name = "stream_options.include_obfuscation"
            raise RequestError(f"{name} is not supported by this server", param=name, code="unsupported_parameter")
    for name in ("max_tokens", "max_completion_tokens"):
        value = getattr(request, name)
        if value is not None and not min_max_tokens <= value <= INT64_MAX:
            raise RequestError(f"{name} must be at least {min_max_tokens} and fit in 64 bits", param=name)
    if request.priority is not None and not INT64_MIN <= request.priority <= INT64_MAX:
        raise RequestError("priority must fit in 64 bits", param="priority")
    if request.priority and not accepts_priority:
        raise RequestError("priority needs a server that runs --scheduling-policy priority", param="priority")
    if request.cache_salt is not None and not 1 <= len(request.cache_salt) <= 128:
        raise RequestError("cache_salt must have 1 to 128 characters", param="cache_salt")


def _asks_nothing(value: object, harmless: tuple[object, ...]) -> bool:
    return any(type(value) is type(known) and value == known for known in harmless)


def generation_params(request: GenerationFields, logprobs: int | None, prompt_logprobs: int | None) -> GenerationParams:
    """The sampling fields as checked ``GenerationParams``."""
    bias = request.logit_bias
    return GenerationParams(
        n=1 if request.n is None else request.n,
        temperature=request.temperature,
        top_k=request.top_k,
        top_p=request.top_p,
        min_p=request.min_p,
        presence_penalty=request.presence_penalty,
        frequency_penalty=request.frequency_penalty,
        repetition_penalty=request.repetition_penalty,
        logit_bias=None if bias is None else {_token_id(key): value for key, value in bias.items()},
        seed=request.seed,
        max_tokens=request.requested_max_tokens,
        min_tokens=request.min_tokens or 0,
        stop=request.stop,
        stop_token_ids=request.stop_token_ids,
        ignore_eos=bool(request.ignore_eos),
        include_stop_str_in_output=bool(request.include_stop_str_in_output),
        skip_special_tokens=request.skip_special_tokens is not False,
        allowed_token_ids=request.allowed_token_ids,
        bad_words=request.bad_words,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
    )


def _token_id(key: str) -> int:
    if not (key.isascii() and key.removeprefix("-").isdigit()) or len(key) > 20:
        raise RequestError("logit_bias keys must be token ids written as integers", param="logit_bias")
    return int(key)


class PromptTokensDetails(msgspec.Struct):
    """``cached_tokens``: prompt tokens whose KV was reused."""

    cached_tokens: int = 0


class Usage(msgspec.Struct):
    """Token counts over all prompts and choices of a request; each prompt counts once whatever n is."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


def make_usage(prompt_tokens: int, completion_tokens: int, cached_tokens: int) -> Usage:
    """The usage object of these counts."""
    total = prompt_tokens + completion_tokens
    return Usage(prompt_tokens, completion_tokens, total, PromptTokensDetails(cached_tokens))
