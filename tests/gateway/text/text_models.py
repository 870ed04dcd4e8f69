"""Small tokenizers of every kind that the gateway serves, trained here and written as model folders."""

import json
from pathlib import Path

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

CORPUS = [
    "The capital of France is Paris. Hello world, hello there, hello again and again!",
    "ok 🙂🌶 日本é, 日本語のテキスト, naïve café, ὦ ἄνδρες, \u202eעברית",
    "def f(x):\n    return x  +  1\n\n\nprint(f(41))  # 42\t<tag>",
    "aaaa abab abba aabb bbbb stop stopping STOP </tool_call> <think>hm</think>",
] * 4

BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(256)]
CONTROL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]

CHATML = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nBe brief.<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def byte_level() -> Tokenizer:
    """As GPT-2, Llama 3, Qwen, SmolLM2. One special token is not in the byte alphabet, one is not UTF-8 in it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=420, special_tokens=CONTROL_TOKENS, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_special_tokens(["<｜end▁é｜>", "<é>", "<|im_end|>x"])
    tokenizer.add_tokens([AddedToken("<think>", normalized=False, special=False)])
    return tokenizer


def sentencepiece() -> Tokenizer:
    """As Llama 2 and Mistral: ▁ for spaces, byte fallback, BOS, a text that begins with a space of its own."""
    vocabulary, merges = _trained_on_metaspace(["<unk>", "<s>", "</s>", *BYTE_TOKENS])
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(
        [AddedToken(text, normalized=False, special=True) for text in ("<unk>", "<s>", "</s>")]
    )
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer


def metaspace() -> Tokenizer:
    """A newer conversion of the same kind: a Metaspace pre-tokenizer and decoder, a prefix for the first piece only."""
    vocabulary, merges = _trained_on_metaspace(["<unk>", "<s>", "</s>"])
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return tokenizer


def word_piece() -> Tokenizer:
    """As BERT: words in lower case, ## for what continues one, an unknown token."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    special_tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    trainer = trainers.WordPieceTrainer(vocab_size=300, special_tokens=special_tokens, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def word_level() -> Tokenizer:
    """Whole words and no decoder entry at all."""
    tokenizer = Tokenizer(models.WordLevel({"<unk>": 0, "hello": 1, "world": 2, "\ufffd": 3, ".": 5}, "<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"\s+"), "removed")
    return tokenizer


KINDS = {
    "byte_level": byte_level,
    "sentencepiece": sentencepiece,
    "metaspace": metaspace,
    "word_piece": word_piece,
    "word_level": word_level,
}


def write_folder(
    folder: Path, backend: Tokenizer, chat_template: str | list[dict[str, str]] | None = None, **declared: object
) -> Path:
    """A model folder with tokenizer.json and tokenizer_config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    if chat_template is not None:
        declared["chat_template"] = chat_template
    (folder / "tokenizer_config.json").write_text(json.dumps(declared))
    return folder


def _trained_on_metaspace(first_tokens: list[str]) -> tuple[dict[str, int], list[tuple[str, str]]]:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.BpeTrainer(
        vocab_size=len(first_tokens) + 150, special_tokens=first_tokens, limit_alphabet=60, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    return model["vocab"], [tuple(merge) for merge in model["merges"]]
