"""Text to token ids and back, by the ``tokenizers`` library and the model folder's tokenizer.json.

Knows no HTTP and no requests. ``encode`` releases the GIL for its work but blocks its caller: long texts belong into
an executor. All methods may be called from several threads.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import tokenizers

from gateway.text.control_tokens import ControlTokens, normalizer_rewrites
from gateway.text.model_files import read_special_tokens, read_text
from gateway.text.token_bounds import token_bounds
from gateway.text.token_decoders import TextDecoder, token_spelling
from ipc.errors import ConfigError, RequestError


class Tokenizer:
    """A model's tokenizer.

    ``special_tokens`` are the tokens by role ("bos_token": "<s>") as the folder declares them, ``vocab_size`` is the
    number of tokens and ``num_token_ids`` the largest id plus one.
    """

    def __init__(self, definition: str, special_tokens: dict[str, str]) -> None:
        """``definition`` is the text of a tokenizer.json. Raises ValueError if the library does not accept it."""
        self._backend = _backend(definition)
        parts = json.loads(definition)
        self._tokens = {token_id: token for token, token_id in self._backend.get_vocab(with_added_tokens=True).items()}
        added_tokens = self._backend.get_added_tokens_decoder()
        self._spelling = token_spelling(self._backend, parts.get("decoder"), self._tokens)
        self._bounds = token_bounds(parts, self._spelling.max_token_bytes)
        self.special_tokens = special_tokens
        self.special_ids = frozenset(token_id for token_id, token in added_tokens.items() if token.special)
        self.vocab_size = len(self._tokens)
        self.num_token_ids = max(self._tokens, default=-1) + 1
        self.control_tokens = ControlTokens(
            _backend(definition),
            {token_id: added_tokens[token_id] for token_id in self.special_ids},
            normalizer_rewrites=normalizer_rewrites(parts.get("normalizer")),
        )

    @classmethod
    def load(cls, folder: Path) -> "Tokenizer":
        """The tokenizer of a model folder. Raises ConfigError naming the file that is missing or broken."""
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise ConfigError(f"{path}: no such file; a model folder needs its tokenizer in that format")
        definition = read_text(path)
        special_tokens = read_special_tokens(folder)
        try:
            return cls(definition, special_tokens)
        except ValueError as error:
            raise ConfigError(f"{path}: is not a usable tokenizer ({error})") from error

    def encode(self, text: str, *, add_special_tokens: bool, param: str | None = None) -> list[int]:
        """Ids of ``text`` in which special tokens are recognized, as raw prompts need it.

        ``add_special_tokens`` adds what the tokenizer's post-processor adds (BOS, if the model has one). Raises
        RequestError, naming ``param``, for a text with a lone surrogate.
        """
        require_encodable(text, param)
        return self._backend.encode(text, add_special_tokens=add_special_tokens).ids

    def encode_ordinary(self, text: str, *, param: str | None = None) -> list[int]:
        """Ids of ``text`` taken literally: a special token spelled in it becomes ordinary tokens, nothing is added."""
        require_encodable(text, param)
        return self.control_tokens.encode_ordinary(text)

    def encode_template_text(self, text: str, *, param: str | None = None) -> list[int]:
        """Ids of a rendered chat template in which ``control_tokens.escape`` marked what is content."""
        require_encodable(text, param)
        return self.control_tokens.encode_escaped(text)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """The text of ``token_ids``: exactly what streaming them gives. RequestError for an id without a token."""
        decoder = self.new_decoder()
        parts = []
        try:
            for token_id in token_ids:
                if not (skip_special_tokens and token_id in self.special_ids):
                    parts.append(decoder.add(token_id))
        except KeyError as error:
            raise _unknown_id(error) from error
        parts.append(decoder.flush())
        return "".join(parts)

    @property
    def joins_special_tokens_with_spaces(self) -> bool:
        """Whether ``decode`` puts spaces between special tokens that are not part of them."""
        return any(
            self.token_bytes(token_id).startswith(b" ") and not self._tokens[token_id].startswith(" ")
            for token_id in self.special_ids
        )

    def new_decoder(self) -> TextDecoder:
        """The decoding state of a new sequence."""
        return self._spelling.new_decoder()

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that the token stands for inside a text; perhaps a part of a character."""
        try:
            return self._spelling.token_bytes(token_id)
        except KeyError as error:
            raise _unknown_id(error) from error

    def token_text(self, token_id: int) -> str:
        """``token_bytes`` as text, for logprobs; an incomplete character shows as U+FFFD."""
        return self.token_bytes(token_id).decode(errors="replace")

    def has_token(self, token_id: int) -> bool:
        """False for ids beyond the vocabulary and in its gaps."""
        return token_id in self._tokens

    def is_special(self, token_id: int) -> bool:
        """Whether ``skip_special_tokens`` leaves the token out."""
        return token_id in self.special_ids

    def token_id(self, token: str) -> int | None:
        """The id of a token by its exact spelling in the vocabulary."""
        return self._backend.token_to_id(token)

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """The id of the folder's ``eos_token``; generation_config.py has the whole stop set of a model."""
        token = self.special_tokens.get("eos_token")
        token_id = None if token is None else self.token_id(token)
        return () if token_id is None else (token_id,)

    def min_tokens(self, text: str) -> int:
        """The number of tokens that ``text`` has at least, without tokenizing it; 0 where there is no such bound."""
        return self._bounds.min_tokens(text)

    def refuse_too_long(self, text: str, max_tokens: int, *, param: str) -> None:
        """Raises RequestError if ``text`` has certainly more than ``max_tokens`` tokens."""
        require_encodable(text, param)
        num_tokens = self.min_tokens(text)
        if num_tokens > max_tokens:
            raise RequestError(
                f"The prompt has at least {num_tokens} tokens, more than the {max_tokens} that fit.",
                param=param,
                code="context_length_exceeded",
            )


def require_encodable(text: str, param: str | None) -> None:
    """Raises RequestError if ``text`` holds half of a surrogate pair, which has no UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        message = f"The text has a lone surrogate (U+{ord(text[error.start]):04X}) at character {error.start}."
        raise RequestError(message, param=param) from error


def _unknown_id(error: KeyError) -> RequestError:
    return RequestError(f"Token id {error.args[0]} is not in the model's vocabulary.")


def _backend(definition: str) -> tokenizers.Tokenizer:
    try:
        backend = tokenizers.Tokenizer.from_str(definition)
    except Exception as error:
        raise ValueError(str(error)) from error
    # A file saved while training may cut or pad every text; a server must do neither.
    backend.no_truncation()
    backend.no_padding()
    return backend
