"""GGUF metadata → config.json and generation_config.json of the Llama family.

Owns which architectures, rope types and settings a GGUF may have; whatever would change the numbers and is not
understood is refused by name. Knows no file formats and no tokenizer. Key names: the GGUF specification
(https://github.com/ggml-org/ggml/blob/master/docs/gguf.md).
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ipc.errors import ConfigError

Metadata = Mapping[str, Any]

# GGUF architecture -> (model_type, architectures[0]). llama.cpp stores Mistral as "llama".
_ARCHITECTURES = {
    "llama": ("llama", "LlamaForCausalLM"),
    "qwen2": ("qwen2", "Qwen2ForCausalLM"),
    "qwen3": ("qwen3", "Qwen3ForCausalLM"),
}
# Settings that would change the numbers and that no model of these families here has.
_REFUSED_IF_SET = (
    "expert_count",
    "logit_scale",
    "embedding_scale",
    "residual_scale",
    "attention.scale",
    "attention.sliding_window_pattern",
    "attention.clamp_kqv",
    "attention.max_alibi_bias",
    "rope.dimension_sections",
)
_SAMPLING_DEFAULTS = {"temp": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p"}
# Llama 3.1 and 3.2 differ in the factor only; the rest of their rope scaling is this.
_LLAMA3_LOW_FREQ_FACTOR, _LLAMA3_HIGH_FREQ_FACTOR, _LLAMA3_ORIGINAL_CONTEXT = 1.0, 4.0, 8192


def architecture(metadata: Metadata) -> str:
    """The GGUF architecture, one of those that can be converted, else ``ConfigError``."""
    name = metadata.get("general.architecture")
    if name not in _ARCHITECTURES:
        raise ConfigError(
            f"GGUF architecture {name!r} is not supported; supported: {', '.join(sorted(_ARCHITECTURES))}"
        )
    return str(name)


def model_config(
    metadata: Metadata, shapes: Mapping[str, tuple[int, ...]], rope_factors: Sequence[float] | None, dtype: str
) -> dict[str, Any]:
    """config.json as a dictionary.

    ``shapes`` maps GGUF tensor names to shapes with rows first. ``rope_factors`` is the tensor
    ``rope_freqs.weight`` [head_dim / 2] if the file has it. ``dtype`` is how the matrices are stored.
    """
    arch = architecture(metadata)
    _refuse_what_is_not_understood(metadata, arch)
    model_type, class_name = _ARCHITECTURES[arch]
    hidden_size = _number(metadata, arch, "embedding_length")
    num_heads = _number(metadata, arch, "attention.head_count")
    head_dim = _number(metadata, arch, "attention.key_length", hidden_size // num_heads)
    rotary_dim = _number(metadata, arch, "rope.dimension_count", head_dim)
    if rotary_dim != head_dim:
        raise ConfigError(f"this GGUF rotates {rotary_dim} of {head_dim} dimensions of a head, which is not supported")
    if "token_embd.weight" not in shapes:
        raise ConfigError("this GGUF has no tensor token_embd.weight: it holds no complete model")
    config: dict[str, Any] = {
        "architectures": [class_name],
        "model_type": model_type,
        "vocab_size": shapes["token_embd.weight"][0],
        "hidden_size": hidden_size,
        "intermediate_size": _number(metadata, arch, "feed_forward_length"),
        "num_hidden_layers": _number(metadata, arch, "block_count"),
        "num_attention_heads": num_heads,
        "num_key_value_heads": _number(metadata, arch, "attention.head_count_kv", num_heads),
        "head_dim": head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": _number(metadata, arch, "context_length"),
        "rms_norm_eps": _shortest_float(metadata.get(f"{arch}.attention.layer_norm_rms_epsilon", 1e-5)),
        "rope_theta": _shortest_float(metadata.get(f"{arch}.rope.freq_base", 10000.0)),
        "tie_word_embeddings": "output.weight" not in shapes,
        "torch_dtype": dtype,
        **_special_ids(metadata),
    }
    if arch in ("llama", "qwen3"):
        config["attention_bias"] = "blk.0.attn_q.bias" in shapes
    if arch == "llama":
        config["mlp_bias"] = "blk.0.ffn_up.bias" in shapes
    if window := metadata.get(f"{arch}.attention.sliding_window"):
        if arch != "llama":
            raise ConfigError(f"a sliding window in a GGUF of architecture {arch} is not supported")
        config.update(model_type="mistral", architectures=["MistralForCausalLM"], sliding_window=int(window))
    if scaling := _rope_scaling(metadata, arch, rope_factors, config["rope_theta"], head_dim):
        config["rope_scaling"] = scaling
    return config


def generation_config(metadata: Metadata) -> dict[str, Any]:
    """generation_config.json: every end-of-turn token the file names, and its sampling defaults."""
    ids = _special_ids(metadata)
    ends = [ids["eos_token_id"]] if "eos_token_id" in ids else []
    for key in ("eot", "eom"):
        token_id = metadata.get(f"tokenizer.ggml.{key}_token_id")
        if token_id is not None and int(token_id) not in ends:
            ends.append(int(token_id))
    if ends:
        ids["eos_token_id"] = ends[0] if len(ends) == 1 else ends
    sampling = {
        ours: int(value) if ours == "top_k" else _shortest_float(value)
        for theirs, ours in _SAMPLING_DEFAULTS.items()
        if (value := metadata.get(f"general.sampling.{theirs}")) is not None
    }
    return {**ids, **({"do_sample": True} if sampling else {}), **sampling}


def _special_ids(metadata: Metadata) -> dict[str, Any]:
    names = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}
    return {
        ours: int(metadata[f"tokenizer.ggml.{theirs}_token_id"])
        for ours, theirs in names.items()
        if f"tokenizer.ggml.{theirs}_token_id" in metadata
    }


def _refuse_what_is_not_understood(metadata: Metadata, arch: str) -> None:
    for key in _REFUSED_IF_SET:
        if metadata.get(f"{arch}.{key}"):
            raise ConfigError(f"this GGUF sets {arch}.{key}, which is not supported")
    if int(metadata.get("split.count", 0)) > 1:
        raise ConfigError("this GGUF is one part of several; join them first with llama-gguf-split --merge")


def _number(metadata: Metadata, arch: str, key: str, default: int | None = None) -> int:
    value = metadata.get(f"{arch}.{key}", default)
    if value is None:
        raise ConfigError(f"this GGUF lacks {arch}.{key}")
    if not isinstance(value, int) or value < 1:
        raise ConfigError(f"this GGUF's {arch}.{key} is not one positive number (layers that differ are not supported)")
    return value


def _rope_scaling(
    metadata: Metadata, arch: str, rope_factors: Sequence[float] | None, theta: float, head_dim: int
) -> dict[str, Any] | None:
    prefix = f"{arch}.rope.scaling."
    kind = metadata.get(f"{prefix}type", "none")
    factor = metadata.get(f"{prefix}factor", metadata.get(f"{arch}.rope.scale_linear"))
    if rope_factors is not None:
        if kind != "none":
            raise ConfigError(f"this GGUF has both rope_freqs.weight and {prefix}type, which is not supported")
        return _llama3_scaling(rope_factors, theta, head_dim)
    if kind == "none" and (not factor or factor == 1):
        return None
    if not factor:
        raise ConfigError(f"this GGUF lacks {prefix}factor")
    if kind in ("none", "linear"):
        return {"rope_type": "linear", "factor": _shortest_float(factor)}
    if kind != "yarn":
        raise ConfigError(f"rope scaling {kind!r} of this GGUF is not supported; supported: linear, yarn, llama3")
    scaling = {"rope_type": "yarn", "factor": _shortest_float(factor)}
    names = {
        "original_context_length": "original_max_position_embeddings",
        "yarn_beta_fast": "beta_fast",
        "yarn_beta_slow": "beta_slow",
    }
    for theirs, ours in names.items():
        if f"{prefix}{theirs}" in metadata:
            scaling[ours] = _shortest_float(metadata[f"{prefix}{theirs}"])
    return scaling


def _llama3_scaling(rope_factors: Sequence[float], theta: float, head_dim: int) -> dict[str, Any]:
    """The parameters of Llama 3's rope scaling from its result, the divisor of each frequency [head_dim / 2]."""
    factor = max(rope_factors)
    for index, given in enumerate(rope_factors):
        wavelength = 2 * math.pi * theta ** (2 * index / head_dim)
        smooth = (_LLAMA3_ORIGINAL_CONTEXT / wavelength - _LLAMA3_LOW_FREQ_FACTOR) / (
            _LLAMA3_HIGH_FREQ_FACTOR - _LLAMA3_LOW_FREQ_FACTOR
        )
        smooth = min(1.0, max(0.0, smooth))
        if not math.isclose(given, 1 / ((1 - smooth) / factor + smooth), rel_tol=1e-3):
            raise ConfigError("this GGUF's rope_freqs.weight is not Llama 3's rope scaling: not supported")
    return {
        "rope_type": "llama3",
        "factor": _shortest_float(factor),
        "low_freq_factor": _LLAMA3_LOW_FREQ_FACTOR,
        "high_freq_factor": _LLAMA3_HIGH_FREQ_FACTOR,
        "original_max_position_embeddings": _LLAMA3_ORIGINAL_CONTEXT,
    }


def _shortest_float(value: float) -> float:
    """The decimal that was meant by a float32: 1e-05 instead of 9.999999747378752e-06. Integers stay integers."""
    return value if isinstance(value, int) else float(f"{value:.7g}")
