"""GGUF metadata → tokenizer.json and tokenizer_config.json.

Owns what a GGUF's vocabulary means: byte-level BPE ("gpt2") with the split its merges were learned on, and
SentencePiece BPE ("llama"). An unknown split is refused, since guessing one gives other tokens than the model's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from ipc.errors import ConfigError

Metadata = Mapping[str, Any]

# Token types of the GGUF specification.
_UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = 2, 3, 4, 5

_LLAMA3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2_WORDS = _LLAMA3_WORDS.replace(r"\p{N}{1,3}", r"\p{N}")


@dataclass(frozen=True, slots=True)
class _Split:
    """How text is cut into words before merging. ``words`` None: GPT-2's own pattern."""

    words: str | None = None
    is_digit_alone: bool = False
    is_nfc: bool = False
    is_whole_word_kept: bool = False
    is_bos_added: bool = False


_LLAMA3 = _Split(words=_LLAMA3_WORDS, is_whole_word_kept=True, is_bos_added=True)
_SPLITS = {
    "gpt-2": _Split(),
    "smollm": _Split(is_digit_alone=True),
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "qwen2": _Split(words=_QWEN2_WORDS, is_nfc=True),
    "deepseek-r1-qwen": _Split(words=_QWEN2_WORDS, is_nfc=True, is_bos_added=True),
}


def build_tokenizer(metadata: Metadata) -> Tokenizer:
    """The tokenizer the metadata describes; ids are the GGUF's. ``ConfigError`` if it is of an unknown kind."""
    kind = metadata.get("tokenizer.ggml.model")
    tokens = [str(token) for token in metadata.get("tokenizer.ggml.tokens", ())]
    if not tokens:
        raise ConfigError("this GGUF holds no vocabulary (tokenizer.ggml.tokens)")
    types = [int(value) for value in metadata.get("tokenizer.ggml.token_type", [1] * len(tokens))]
    if len(types) != len(tokens):
        raise ConfigError("this GGUF's vocabulary is damaged: as many token types as tokens are needed")
    # Converters pad the vocabulary up to the embedding's rows; those rows stand for no text.
    while tokens and types[-1] == _UNUSED:
        del tokens[-1], types[-1]
    if kind == "gpt2":
        tokenizer, is_bos_default = _byte_level(metadata, tokens)
    elif kind == "llama":
        tokenizer, is_bos_default = _sentencepiece(metadata, tokens, types), True
    else:
        raise ConfigError(f"tokenizer {kind!r} of this GGUF is not supported; supported: gpt2, llama")
    _add_whole_tokens(tokenizer, tokens, types)
    _add_template(tokenizer, metadata, tokens, is_bos_default)
    if tokenizer.get_vocab_size() != len(tokens):
        raise ConfigError("this GGUF's vocabulary is damaged: a token is in it twice")
    return tokenizer


def tokenizer_config(metadata: Metadata) -> dict[str, Any]:
    """tokenizer_config.json: special tokens by name, context length, chat template."""
    arch = metadata["general.architecture"]
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": int(metadata[f"{arch}.context_length"]),
    }
    for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        token = _token(metadata, f"tokenizer.ggml.{key}_token_id")
        if token is not None:
            config[f"{name}_token"] = token
    prefix = "tokenizer.chat_template"
    named = {key[len(prefix) + 1 :]: metadata[key] for key in metadata if key.startswith(f"{prefix}.")}
    default = metadata.get(prefix)
    if named:
        templates = ({"default": default} if default is not None else {}) | named
        config["chat_template"] = [{"name": name, "template": text} for name, text in templates.items()]
    elif default is not None:
        config["chat_template"] = default
    return config


def _token(metadata: Metadata, key: str) -> str | None:
    token_id = metadata.get(key)
    if token_id is None:
        return None
    tokens = metadata["tokenizer.ggml.tokens"]
    if not 0 <= token_id < len(tokens):
        raise ConfigError(f"this GGUF's {key} {token_id} is outside its vocabulary of {len(tokens)}")
    return str(tokens[token_id])


def _byte_level(metadata: Metadata, tokens: Sequence[str]) -> tuple[Tokenizer, bool]:
    name = metadata.get("tokenizer.ggml.pre")
    split = _SPLITS.get(str(name))
    if split is None:
        raise ConfigError(
            f"pre-tokenizer {name!r} of this GGUF (tokenizer.ggml.pre) is not supported; supported: "
            + ", ".join(_SPLITS)
        )
    if "tokenizer.ggml.merges" not in metadata:
        raise ConfigError("this GGUF lacks tokenizer.ggml.merges")
    merges = [_pair(merge) for merge in metadata["tokenizer.ggml.merges"]]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=split.is_whole_word_kept))
    if split.is_nfc:
        tokenizer.normalizer = normalizers.NFC()
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split.words is None)
    if split.words is not None:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Split(Regex(split.words), "isolated"), byte_level]
        )
    elif split.is_digit_alone:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
    else:
        tokenizer.pre_tokenizer = byte_level
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, split.is_bos_added


def _pair(merge: str) -> tuple[str, str]:
    left, found, right = merge.partition(" ")
    if not (left and found and right):
        raise ConfigError(f"this GGUF's tokenizer.ggml.merges is damaged: {merge!r}")
    return left, right


def _sentencepiece(metadata: Metadata, tokens: Sequence[str], types: Sequence[int]) -> Tokenizer:
    scores = metadata.get("tokenizer.ggml.scores")
    if scores is None or len(scores) < len(tokens):
        raise ConfigError("this GGUF lacks tokenizer.ggml.scores")
    vocabulary = {token: index for index, token in enumerate(tokens)}
    unknown = next((token for token, kind in zip(tokens, types, strict=True) if kind == _UNKNOWN), None)
    tokenizer = Tokenizer(
        models.BPE(
            vocab=vocabulary,
            merges=_merges_by_score(vocabulary, scores),
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    is_prefix_added = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
    spaces = normalizers.Replace(" ", "▁")
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), spaces]) if is_prefix_added else spaces
    steps: list[decoders.Decoder] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if is_prefix_added:
        steps.append(decoders.Strip(" ", 1, 0))
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


def _merges_by_score(vocabulary: Mapping[str, int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """SentencePiece merges the neighbours whose union scores best: every split of every token, best union first."""
    pairs = [
        (-float(scores[index]), vocabulary[token[:cut]], vocabulary[token[cut:]], token[:cut], token[cut:])
        for token, index in vocabulary.items()
        for cut in range(1, len(token))
        if token[:cut] in vocabulary and token[cut:] in vocabulary
    ]
    pairs.sort()
    return [(left, right) for *_, left, right in pairs]


def _add_whole_tokens(tokenizer: Tokenizer, tokens: Sequence[str], types: Sequence[int]) -> None:
    """Control tokens are special, user-defined ones are only matched whole."""
    for token, kind in zip(tokens, types, strict=True):
        if kind in (_CONTROL, _UNKNOWN):
            tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True)])
        elif kind == _USER_DEFINED:
            tokenizer.add_tokens([AddedToken(token, normalized=False, special=False)])


def _add_template(tokenizer: Tokenizer, metadata: Metadata, tokens: Sequence[str], is_bos_default: bool) -> None:
    """BOS before and EOS after a text, where the file asks for them."""
    parts, specials = ["$A"], []
    for name, is_added in (
        ("bos", metadata.get("tokenizer.ggml.add_bos_token", is_bos_default)),
        ("eos", metadata.get("tokenizer.ggml.add_eos_token", False)),
    ):
        token = _token(metadata, f"tokenizer.ggml.{name}_token_id")
        if is_added and token is not None:
            parts = [token, *parts] if name == "bos" else [*parts, token]
            specials.append((token, tokens.index(token)))
    if specials:
        tokenizer.post_processor = processors.TemplateProcessing(single=parts, special_tokens=specials)
