"""/v1/completions: the request with its four shapes of prompt, and the whole response."""

from typing import Any, cast

import msgspec
from msgspec import UNSET, UnsetType

from gateway.schema.common import GenerationFields, Usage, generation_params
from gateway.schema.prompt_logprobs import PromptLogprobs
from gateway.schema.sampling import RANGES, GenerationParams
from ipc.errors import RequestError

MAX_PROMPTS = 1024
MAX_BEST_OF = 64

Prompt = str | list[int]
"""One prompt: text, or token ids."""


class CompletionRequest(GenerationFields, forbid_unknown_fields=True, kw_only=True):
    """The body of POST /v1/completions. ``logprobs``: how many alternatives, 0 for the drawn token alone.

    ``best_of``: so many choices are generated, and the ``n`` with the highest mean log-probability are the answer;
    with ``use_beam_search`` so many beams are kept, and the ``n`` with the highest score are the answer.
    """

    prompt: str | list[str | int | list[int]]
    echo: bool | None = None
    logprobs: int | None = None

    best_of: int | None = None
    suffix: str | None = None  # empty only
    prompt_embeds: Any = None

    @property
    def num_choices(self) -> int:
        """How many choices of a prompt are the answer."""
        return 1 if self.n is None else self.n

    @property
    def num_generated(self) -> int:
        """How many choices of a prompt are generated."""
        return self.num_choices if self.best_of is None or self.use_beam_search else self.best_of

    def to_params(self, max_logprobs: int) -> GenerationParams:
        """The sampling parameters. Raises RequestError naming the field."""
        if self.logprobs is not None and not 0 <= self.logprobs <= max_logprobs:
            raise RequestError(f"logprobs must be from 0 to {max_logprobs}", param="logprobs")
        if self.suffix:
            raise RequestError("suffix: this model has no fill-in-the-middle", param="suffix")
        self._check_best_of()
        logprobs, prompt_logprobs = self.logprobs, self.prompt_logprobs
        if logprobs is None and self.num_generated > self.num_choices:
            logprobs = 0  # the best are found by them
        if self.echo and self.logprobs is not None:
            prompt_logprobs = max(self.logprobs, prompt_logprobs or 0)
        return generation_params(self, logprobs, prompt_logprobs, n=self.num_generated)

    def _check_best_of(self) -> None:
        if self.best_of is None:
            return
        RANGES["n"].check("n", self.num_choices)
        if not self.num_choices <= self.best_of <= MAX_BEST_OF:
            raise RequestError(f"best_of must be from n ({self.num_choices}) to {MAX_BEST_OF}", param="best_of")
        if self.is_stream and self.best_of != self.num_choices:
            raise RequestError("best_of must be n when stream is true: the best are known at the end", param="best_of")

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
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_text: str | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | None | UnsetType = UNSET


class Completion(msgspec.Struct, kw_only=True):
    """The body of a whole response."""

    id: str
    object: str = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage
    system_fingerprint: str
