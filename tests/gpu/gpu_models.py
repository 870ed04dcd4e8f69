"""Models of well-known shapes without weights: folders that hold a config.json alone."""

import json
from pathlib import Path
from typing import Any


def _config(hidden: int, heads: int, kv_heads: int, intermediate: int, layers: int, vocab: int, **more: Any) -> Any:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocab,
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "tie_word_embeddings": True,
    } | more


CONFIGS: dict[str, dict[str, Any]] = {
    "tiny": _config(64, 4, 2, 128, 2, 199, max_position_embeddings=512),
    "smollm2-135m": _config(576, 9, 3, 1536, 30, 49152, rope_theta=100000.0),
    "llama-1b": _config(2048, 32, 8, 8192, 16, 128256),
    "llama-8b": _config(4096, 32, 8, 14336, 32, 128256, tie_word_embeddings=False),
}


def write_model(name: str, folder: Path) -> Path:
    """``folder``, with the config of that model."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIGS[name]))
    return folder


def num_linear_weights(config: dict[str, Any]) -> int:
    """Of the layers: what every token is multiplied by, the head apart."""
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    head_size = hidden // heads
    qkv = hidden * head_size * (heads + 2 * config["num_key_value_heads"])
    return int(config["num_hidden_layers"] * (qkv + hidden * hidden + 3 * hidden * config["intermediate_size"]))


def num_head_weights(config: dict[str, Any]) -> int:
    """Of the linear that makes logits."""
    return int(config["vocab_size"] * config["hidden_size"])


def kv_bytes_per_token(config: dict[str, Any], bytes_per_number: int) -> int:
    """Of all layers."""
    head_size = config["hidden_size"] // config["num_attention_heads"]
    return int(2 * config["num_key_value_heads"] * head_size * config["num_hidden_layers"] * bytes_per_number)


def attention_flops(config: dict[str, Any], num_tokens: int) -> int:
    """Of a prompt, in all layers: two products, and each token sees half of the others."""
    return int(2 * num_tokens * num_tokens * config["hidden_size"] * config["num_hidden_layers"])
