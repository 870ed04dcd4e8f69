"""``truncate_prompt_tokens`` and ``truncation_side``: the part of a prompt that is kept."""

from dataclasses import dataclass
from typing import Protocol

from gateway.schema.resolve import ModelLimits
from ipc.errors import RequestError

ALL_THAT_FITS = -1


class TruncatingRequest(Protocol):
    """The fields that say it."""

    @property
    def truncate_prompt_tokens(self) -> int | None: ...
    @property
    def truncation_side(self) -> str | None: ...
    @property
    def requested_max_tokens(self) -> int | None: ...


@dataclass(frozen=True, slots=True)
class Truncation:
    """``side`` left: the last ``num_tokens`` are kept, right: the first."""

    num_tokens: int
    side: str

    def of(self, token_ids: list[int]) -> list[int]:
        """What is left of ``token_ids``; the same list if they are few enough."""
        if len(token_ids) <= self.num_tokens:
            return token_ids
        return token_ids[: self.num_tokens] if self.side == "right" else token_ids[-self.num_tokens :]


def check_truncation_fields(num_tokens: int | None, side: str | None) -> None:
    """The checks that need no model. Raises RequestError naming the field."""
    if num_tokens is None:
        if side is not None:
            raise RequestError("truncation_side needs truncate_prompt_tokens", param="truncation_side")
    elif num_tokens < 1 and num_tokens != ALL_THAT_FITS:
        raise RequestError(
            "truncate_prompt_tokens must be at least 1, or -1 for all that fits", param="truncate_prompt_tokens"
        )


def requested_truncation(
    request: TruncatingRequest, limits: ModelLimits, default_max_tokens: int | None
) -> Truncation | None:
    """What the request says; None if nothing. -1 leaves room for max_tokens, else ``default_max_tokens``, else one.

    Raises RequestError for more tokens than the context has.
    """
    num_tokens = request.truncate_prompt_tokens
    if num_tokens is None:
        return None
    if num_tokens > limits.max_model_len:
        raise RequestError(
            f"truncate_prompt_tokens must be at most the model's context of {limits.max_model_len} tokens",
            param="truncate_prompt_tokens",
        )
    if num_tokens == ALL_THAT_FITS:
        num_output = request.requested_max_tokens
        if num_output is None:
            num_output = default_max_tokens or 1
        # Never nothing: a max_tokens that fills the context is refused for itself.
        num_tokens = max(limits.max_sequence_len - num_output, 1)
    return Truncation(num_tokens, request.truncation_side or "left")
