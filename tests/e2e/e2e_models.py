"""A model folder that is made in a moment: a byte-level BPE trained here and the config of a few small layers.

Served with ``--load-format dummy``; its output is noise, but the same noise every time.
"""

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from kernels.native.build import NativeUnavailable, find_compiler

CONTROL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CORPUS = (
    "The lighthouse keeper counts the ships that pass before breakfast, and writes their names into a book.",
    "A kettle sings in the kitchen while the rain walks slowly over the roof of the old station.",
    "ok 🙂🌶 日本é, 日本語のテキスト, naïve café, Grüße aus Köln, Привет мир, שלום",
    "def area(width, height):\n    return width * height\n\n\nprint(area(3, 4))  # 12\t!",
    "Every morning the baker asks the miller, and the miller asks the river, whether there will be bread.",
)
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def sizes() -> dict[str, int]:
    """A step takes some milliseconds on whatever kernels this machine has: tests catch requests while they run."""
    try:
        find_compiler()
    except NativeUnavailable:
        return {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    return {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 24}


CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    **sizes(),
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 262144,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "float32",
}


def make_tokenizer() -> Tokenizer:
    """Ids 0 to 2 are the control tokens; every byte has a token, so emoji and CJK come in pieces."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=512,
        special_tokens=list(CONTROL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def make_tiny_model(folder: Path, **changes: Any) -> Path:
    """The folder, without weights. ``changes`` replace fields of config.json."""
    folder.mkdir(parents=True)
    tokenizer = make_tokenizer()
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {**CONFIG, "vocab_size": tokenizer.get_vocab_size(), **changes}
    (folder / "config.json").write_text(json.dumps(config))
    declared = {"eos_token": "<|im_end|>", "bos_token": "<|im_start|>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(declared))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, 2]}))
    return folder
