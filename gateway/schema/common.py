"""What chat and text completion requests share: the sampling fields, the fields without effect, usage.

Every optional field takes null and means "not given" by it. Unknown fields are refused (contract 6).
"""

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from gateway.request_id import is_request_id
from gateway.schema.sampling import INT64_MAX, INT64_MIN, GenerationParams
from gateway.schema.structured import GrammarRequest, ResponseFormat, StructuredOutputs, grammar_request
from gateway.schema.truncation import check_truncation_fields
from gateway.tenant_usage import Cost
from ipc.errors import RequestError

UNSUPPORTED: dict[str, tuple[object, ...]] = {
    "store": (None, False),
    "functions": (None, []),
    "function_call": (None, "none"),
    "modalities": (None, ["text"]),
    "audio": (None, {}),
    "prediction": (None, {}),
    "web_search_options": (None,),
    "verbosity": (None,),
    "thinking_token_budget": (None, -1),
    "prompt_embeds": (None, []),
    "logprob_token_ids": (None, []),
    "repetition_detection": (None,),
    "watermarking": (None, False),
    "session_id": (None,),
    "vllm_xargs": (None, {}),
    "kv_transfer_params": (None, {}),
    "ec_transfer_params": (None, {}),
    "mm_processor_kwargs": (None, {}),
    "media_io_kwargs": (None, {}),
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
    use_beam_search: bool | None = None
    length_penalty: float | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    add_special_tokens: bool | None = None
    priority: int | None = None
    deadline_ms: int | None = None
    cache_salt: str | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    prompt_logprobs: int | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    return_prompt_text: bool | None = None
    return_cost: bool | None = None
    truncate_prompt_tokens: int | None = None
    truncation_side: Literal["left", "right"] | None = None
    stream_interval: int | None = None
    request_id: str | None = None
    spaces_between_special_tokens: bool | None = None  # true is every tokenizer's own way

    # Fields that have no effect by definition.
    user: str | None = None
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    safety_identifier: str | None = None

    # Fields of UNSUPPORTED that both kinds of request know.
    store: Any = None
    thinking_token_budget: Any = None
    logprob_token_ids: Any = None
    repetition_detection: Any = None
    watermarking: Any = None
    session_id: Any = None
    vllm_xargs: Any = None
    kv_transfer_params: Any = None
    ec_transfer_params: Any = None
    mm_processor_kwargs: Any = None
    media_io_kwargs: Any = None

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


def requested_grammar(request: GenerationFields) -> GrammarRequest | None:
    """What the output must look like, if the request says so. Raises RequestError naming the field."""
    grammar = grammar_request(request.response_format, request.structured_outputs)
    if grammar is not None and request.allowed_token_ids is not None:
        raise RequestError(f"allowed_token_ids does not go with {grammar.param}", param="allowed_token_ids")
    return grammar


def check_common(request: GenerationFields, *, accepts_priority: bool, min_max_tokens: int) -> None:
    """The checks that belong to no sampling parameter. Raises RequestError naming the field."""
    for name in request.__struct_fields__:
        if name in UNSUPPORTED and not _asks_nothing(getattr(request, name), UNSUPPORTED[name]):
            raise RequestError(f"{name} is not supported by this server", param=name, code="unsupported_parameter")
    _check_streaming(request)
    check_truncation_fields(request.truncate_prompt_tokens, request.truncation_side)
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
    if request.request_id is not None and not is_request_id(request.request_id):
        raise RequestError("request_id must have 1 to 128 characters of A-Z a-z 0-9 . _ : -", param="request_id")


def _check_streaming(request: GenerationFields) -> None:
    """What goes with a stream only, and what does not go with one."""
    if request.stream_options is not None:
        if not request.is_stream:
            raise RequestError("stream_options is only allowed when stream is true", param="stream_options")
        if request.stream_options.include_obfuscation:
            name = "stream_options.include_obfuscation"
            raise RequestError(f"{name} is not supported by this server", param=name, code="unsupported_parameter")
    if request.stream_interval is not None:
        if not 1 <= request.stream_interval <= INT64_MAX:
            raise RequestError("stream_interval must be at least 1 and fit in 64 bits", param="stream_interval")
        if request.stream_interval > 1 and not request.is_stream:
            raise RequestError("stream_interval is only allowed when stream is true", param="stream_interval")
    if request.return_cost and request.is_stream and not request.includes_usage:
        raise RequestError("return_cost needs stream_options.include_usage when stream is true", param="return_cost")
    if request.prompt_logprobs is not None:
        if request.prompt_logprobs < 0:
            raise RequestError("prompt_logprobs must be at least 0", param="prompt_logprobs")
        if request.is_stream:
            raise RequestError("prompt_logprobs is not allowed when stream is true", param="prompt_logprobs")


def _asks_nothing(value: object, harmless: tuple[object, ...]) -> bool:
    return any(type(value) is type(known) and value == known for known in harmless)


def generation_params(
    request: GenerationFields, logprobs: int | None, prompt_logprobs: int | None, *, n: int | None = None
) -> GenerationParams:
    """The sampling fields as checked ``GenerationParams``; ``n``: how many choices to generate, if not its own."""
    bias = request.logit_bias
    return GenerationParams(
        n=n if n is not None else 1 if request.n is None else request.n,
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


class CompletionTokensDetails(msgspec.Struct):
    """``reasoning_tokens``: output tokens that are no part of the answer."""

    reasoning_tokens: int = 0


class Usage(msgspec.Struct):
    """Token counts over all prompts and choices of a request; each prompt counts once whatever n is. ``cost``: where
    it was asked for."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails
    cost: Cost | UnsetType = UNSET


def make_usage(
    prompt_tokens: int,
    completion_tokens: int,
    cached_tokens: int,
    reasoning_tokens: int = 0,
    cost: Cost | UnsetType = UNSET,
) -> Usage:
    """The usage object of these counts."""
    return Usage(
        prompt_tokens,
        completion_tokens,
        prompt_tokens + completion_tokens,
        PromptTokensDetails(cached_tokens),
        CompletionTokensDetails(reasoning_tokens),
        cost,
    )
