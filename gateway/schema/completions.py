"""/v1/completions: the request with its four shapes of prompt, and the whole response."""

from typing import Any, cast

import msgspec

from gateway.schema.common import GenerationFields, Usage, generation_params
from gateway.schema.sampling import GenerationParams
from ipc.errors import RequestError

MAX_PROMPTS = 1024

Prompt = str | list[int]
"""One prompt: text, or token ids."""


class CompletionRequest(GenerationFields, forbid_unknown_fields=True, kw_only=True):
    """The body of POST /v1/completions. ``logprobs``: how many alternatives, 0 for the drawn token alone."""

    prompt: str | list[str | int | list[int]]
    echo: bool | None = None
    logprobs: int | None = None

    best_of: Any = None
    suffix: Any = None
    prompt_embeds: Any = None

    def to_params(self, max_logprobs: int) -> GenerationParams:
        """The sampling parameters. Raises RequestError naming the field."""
        if self.logprobs is not None and not 0 <= self.logprobs <= max_logprobs:
            raise RequestError(f"logprobs must be from 0 to {max_logprobs}", param="logprobs")
        return generation_params(self, self.logprobs, self.logprobs if self.echo else None)

    def prompts(self) -> list[Prompt]:
        """The prompts in order. Raises RequestError (``prompt``) for an empty or a mixed list.

        Ids are not checked against a vocabulary here, but they fit in an int64.
        """
        if isinstance(self.prompt, str):
            prompts: list[Prompt] = [self.prompt]
        elif not self.prompt:
            raise RequestError("prompt must not be empty", param="prompt")
        elif len(kinds := {*map(type, self.prompt)}) == 1 and int in kinds:
            prompts = [cast(list[int], self.prompt)]
        else:
            prompts = cast(list[Prompt], self.prompt)
            if len(kinds) > 1:
                raise RequestError("prompt must hold only texts, only ids or only lists of ids", param="prompt")
        if len(prompts) > MAX_PROMPTS:
            raise RequestError(f"prompt may hold at most {MAX_PROMPTS} prompts, not {len(prompts)}", param="prompt")
        if not all(prompts):
            raise RequestError("prompt must not hold an empty prompt", param="prompt")
        return prompts


decoder = msgspec.json.Decoder(CompletionRequest)


class CompletionLogprobs(msgspec.Struct):
    """Four lists with an entry a token. The first token of an echoed prompt has null for its log-probability.

    ``text_offset`` counts characters of the choice's text, the echoed prompt included.
    """

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


class CompletionChoice(msgspec.Struct):
    """One choice: prompt p's choice c has index p·n + c."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str | None
    stop_reason: str | int | None = None


class Completion(msgspec.Struct, kw_only=True):
    """The body of a whole response."""

    id: str
    object: str = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage
    system_fingerprint: str
