"""``GenerationParams``: how one request's tokens are drawn, as users write it.

Owns names, ranges and the checks that need no model; exported to users as ``octavo.SamplingParams``. What
needs the prompt, the vocabulary or the model's defaults is in ``resolve``.
"""

from dataclasses import dataclass

from ipc.errors import RequestError

MAX_CHOICES = 1024
MAX_STOP_STRINGS = 4
MAX_STOP_CHARS = 4096
MAX_STOP_TOKEN_IDS = 256
MAX_BAD_WORDS = 128
MAX_LOGIT_BIAS = 4096
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1


@dataclass(frozen=True, slots=True)
class Range:
    """Allowed values of a number. ``low_is_open``: the lower bound itself is not allowed."""

    low: float
    high: float
    is_integer: bool = False
    low_is_open: bool = False

    def check(self, name: str, value: object) -> None:
        """Raises RequestError naming ``name`` unless ``value`` is a number inside. NaN is outside of everything."""
        kinds = (int,) if self.is_integer else (int, float)
        if isinstance(value, bool) or not isinstance(value, kinds):
            raise RequestError(f"{name} must be {'an integer' if self.is_integer else 'a number'}", param=name)
        inside = (self.low < value if self.low_is_open else self.low <= value) and value <= self.high
        if not inside:
            raise RequestError(f"{name} must be {self}", param=name)

    def __str__(self) -> str:
        low = f"greater than {self.low:g}" if self.low_is_open else f"at least {_shown(self.low)}"
        return f"{low} and at most {_shown(self.high)}"


def _shown(bound: float) -> str:
    return str(bound) if isinstance(bound, int) else f"{bound:g}"


RANGES: dict[str, Range] = {
    "n": Range(1, MAX_CHOICES, is_integer=True),
    "temperature": Range(0.0, 2.0),
    "top_k": Range(-1, INT64_MAX, is_integer=True),
    "top_p": Range(0.0, 1.0, low_is_open=True),
    "min_p": Range(0.0, 1.0),
    "presence_penalty": Range(-2.0, 2.0),
    "frequency_penalty": Range(-2.0, 2.0),
    # Far outside of what is useful, and well inside of what a float32 division by it survives.
    "repetition_penalty": Range(0.01, 100.0),
    "seed": Range(INT64_MIN, INT64_MAX, is_integer=True),
    "max_tokens": Range(0, INT64_MAX, is_integer=True),
    "min_tokens": Range(0, INT64_MAX, is_integer=True),
    "logprobs": Range(0, INT64_MAX, is_integer=True),
    "prompt_logprobs": Range(0, INT64_MAX, is_integer=True),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationParams:
    """Sampling parameters of one request; ``None`` means "the model's default, else octavo's".

    - ``n``: choices for the prompt. ``seed``: int64; without one, a random one.
    - ``temperature`` 0 … 2, 0 is greedy. ``top_k`` −1 or 0 is off. ``top_p`` in (0, 1], ``min_p`` in [0, 1].
    - ``presence_penalty`` and ``frequency_penalty`` −2 … 2, ``repetition_penalty`` 0.01 … 100, 1 is off.
    - ``logit_bias``: token id to −100 … 100. ``allowed_token_ids``: only these. ``bad_words``: texts never written.
    - ``max_tokens``: None is 16 for text and the rest of the context for chat; ``min_tokens``: no end before.
    - ``stop``: up to 4 texts; ``stop_token_ids``; ``ignore_eos``; ``include_stop_str_in_output``.
    - ``logprobs``: None for none, 0 for the drawn token's, k for the k most likely besides. ``prompt_logprobs``
      likewise for the prompt's tokens.

    Raises RequestError naming the parameter.
    """

    n: int = 1
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[int, float] | None = None
    seed: int | None = None
    max_tokens: int | None = None
    min_tokens: int = 0
    stop: str | list[str] | tuple[str, ...] | None = ()
    stop_token_ids: list[int] | tuple[int, ...] | None = ()
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    allowed_token_ids: list[int] | tuple[int, ...] | None = None
    bad_words: list[str] | tuple[str, ...] | None = ()
    logprobs: int | None = None
    prompt_logprobs: int | None = None

    def __post_init__(self) -> None:
        for name, allowed in RANGES.items():
            value = getattr(self, name)
            if value is not None or name in ("n", "min_tokens"):
                allowed.check(name, value)
        for name in ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens"):
            if not isinstance(getattr(self, name), bool):
                raise RequestError(f"{name} must be true or false", param=name)
        stop = (self.stop,) if isinstance(self.stop, str) else self.stop
        self._set("stop", _texts("stop", stop, MAX_STOP_STRINGS))
        self._set("bad_words", _texts("bad_words", self.bad_words, MAX_BAD_WORDS))
        self._set("stop_token_ids", _ids("stop_token_ids", self.stop_token_ids or (), MAX_STOP_TOKEN_IDS))
        if self.allowed_token_ids is not None:
            if not self.allowed_token_ids:
                raise RequestError("allowed_token_ids must not be empty", param="allowed_token_ids")
            self._set("allowed_token_ids", _ids("allowed_token_ids", self.allowed_token_ids, None))
        if self.logit_bias is not None:
            _check_logit_bias(self.logit_bias)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise RequestError(
                f"min_tokens ({self.min_tokens}) must not exceed max_tokens ({self.max_tokens})", param="min_tokens"
            )

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)  # normalising inside __post_init__ of a frozen record

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """``stop`` as the tuple it was normalised to."""
        return tuple(self.stop or ())


def _texts(name: str, values: object, most: int) -> tuple[str, ...]:
    if values is None:
        return ()
    if not isinstance(values, list | tuple) or not all(isinstance(value, str) for value in values):
        raise RequestError(f"{name} must be text or a list of texts", param=name)
    if len(values) > most:
        raise RequestError(f"{name} may hold at most {most} entries, not {len(values)}", param=name)
    for value in values:
        if not value:
            raise RequestError(f"{name} must not hold an empty text", param=name)
        if len(value) > MAX_STOP_CHARS:
            raise RequestError(f"an entry of {name} may have at most {MAX_STOP_CHARS} characters", param=name)
    return tuple(values)


def _ids(name: str, values: object, most: int | None) -> tuple[int, ...]:
    if not isinstance(values, list | tuple):
        raise RequestError(f"{name} must be a list of token ids", param=name)
    if any(isinstance(value, bool) or not isinstance(value, int) for value in values):
        raise RequestError(f"{name} must hold integers only", param=name)
    if most is not None and len(values) > most:
        raise RequestError(f"{name} may hold at most {most} entries, not {len(values)}", param=name)
    return tuple(values)


def _check_logit_bias(bias: object) -> None:
    if not isinstance(bias, dict):
        raise RequestError("logit_bias must map token ids to numbers", param="logit_bias")
    if len(bias) > MAX_LOGIT_BIAS:
        raise RequestError(f"logit_bias may hold at most {MAX_LOGIT_BIAS} entries, not {len(bias)}", param="logit_bias")
    for token_id, value in bias.items():
        if isinstance(token_id, bool) or not isinstance(token_id, int):
            raise RequestError("logit_bias keys must be token ids", param="logit_bias")
        if isinstance(value, bool) or not isinstance(value, int | float) or not -100 <= value <= 100:
            raise RequestError("logit_bias values must be numbers from -100 to 100", param="logit_bias")
