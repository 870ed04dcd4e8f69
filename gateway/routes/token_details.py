"""What a response tells only where it was asked to: token ids, and the prompt's text and log-probabilities."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from gateway.generation import Generation
from gateway.schema.common import GenerationFields
from gateway.schema.prompt_logprobs import PromptLogprobs, format_prompt_logprobs
from gateway.text.tokenizer import Tokenizer

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class TokenDetails:
    """``has_ids``: of the prompt and the output. ``names_by_id``: tokens in log-probabilities are written as
    ``token_id:123``. ``num_prompt_top`` None: the prompt's log-probabilities are not wanted."""

    tokenizer: Tokenizer
    generations: Sequence[Generation]
    has_ids: bool
    names_by_id: bool
    has_prompt_text: bool
    num_prompt_top: int | None

    @classmethod
    def of(cls, body: GenerationFields, tokenizer: Tokenizer, generations: Sequence[Generation]) -> "TokenDetails":
        """What ``body`` asks for."""
        return cls(
            tokenizer,
            generations,
            has_ids=bool(body.return_token_ids),
            names_by_id=bool(body.return_tokens_as_token_ids),
            has_prompt_text=bool(body.return_prompt_text),
            num_prompt_top=body.prompt_logprobs,
        )

    def name(self, token_id: int) -> str:
        """How a token is written in log-probabilities."""
        return f"token_id:{token_id}" if self.names_by_id else self.tokenizer.token_text(token_id)

    def of_prompt(self, prompt_index: int) -> dict[str, Any]:
        """The fields about one prompt."""
        fields: dict[str, Any] = {}
        token_ids = self.generations[prompt_index].request.prompt_ids
        if self.has_ids:
            fields["prompt_token_ids"] = token_ids
        if self.has_prompt_text:
            fields["prompt_text"] = self.tokenizer.decode(token_ids, skip_special_tokens=False)
        if self.num_prompt_top is not None:
            fields["prompt_logprobs"] = self._prompt_logprobs(prompt_index, self.num_prompt_top)
        return fields

    def prompt_members(self, prompt_index: int) -> bytes:
        """``of_prompt`` as JSON members, without braces; empty if there are none."""
        fields = self.of_prompt(prompt_index)
        return _encode(fields)[1:-1] if fields else b""

    def ids(self, token_ids: list[int]) -> list[int] | msgspec.UnsetType:
        """``token_ids`` of a choice, if asked for."""
        return token_ids if self.has_ids else msgspec.UNSET

    def ids_member(self, token_ids: list[int]) -> bytes:
        """Likewise as a JSON member after others."""
        return b',"token_ids":' + _encode(token_ids) if self.has_ids else b""

    def _prompt_logprobs(self, prompt_index: int, num_top: int) -> PromptLogprobs | None:
        generation = self.generations[prompt_index]
        entries = generation.prompt_logprobs
        if entries is None and len(generation.request.prompt_ids) > 1:
            return None  # the request was aborted before they were known
        return format_prompt_logprobs(self.tokenizer, entries or (), num_top)
