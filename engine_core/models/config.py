"""What a model is: its config.json, read by us, checked, and frozen.

Knows no tensors and no weights. What differs between families is read by the families' files.
"""

from dataclasses import dataclass
from pathlib import Path

from engine_core.models.config_fields import ConfigFields
from engine_core.models.rope_config import RopeConfig, read_rope
from ipc.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ArchitectureConfig:
    """Shapes and switches of a decoder; sizes in elements.

    ``windows``: per layer, how many positions a row sees, itself included; None: all. ``torch_dtype``: what the
    checkpoint was saved in, if config.json says it.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope: RopeConfig
    tie_word_embeddings: bool
    attention_bias: bool  # of q, k and v
    output_bias: bool  # of the attention's output projection
    mlp_bias: bool
    qk_norm: bool
    windows: tuple[int | None, ...]
    torch_dtype: str | None

    @property
    def num_segments(self) -> int:
        """Segments of K in which o_proj and down_proj are summed (design 7.2)."""
        if self.intermediate_size % 32:
            return 1
        groups = self.intermediate_size // 32
        return max(size for size in range(1, 9) if self.num_heads % size == 0 and groups % size == 0)


@dataclass(frozen=True, slots=True)
class FamilyTraits:
    """What a family's file has to say about a config; the rest is read the same way for all."""

    num_kv_heads: int
    head_size: int | None = None  # None: hidden_size / num_heads, unless config.json has a head_dim
    attention_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    windows: tuple[int | None, ...] | None = None


def read_config(folder: Path) -> ArchitectureConfig:
    """The config of a model folder.

    Raises ConfigError, one line that names file and field: a missing file or field, a wrong type, an architecture
    or a rope type that is not supported.
    """
    from engine_core.models.architecture import (
        find_architecture,
        supported_class_names,
    )  # it needs this module's records

    if not folder.is_dir():
        raise ConfigError(f"{folder}: not a folder")
    fields = ConfigFields.read(folder / "config.json")
    found = find_architecture(fields.strings("architectures"))
    if found is None:
        supported = ", ".join(supported_class_names())
        raise fields.error(
            "architectures", f"{fields.strings('architectures')} is not supported; supported: {supported}"
        )
    name, architecture = found
    return _read(name, fields, architecture.read_traits(fields))


def _read(name: str, fields: ConfigFields, traits: FamilyTraits) -> ArchitectureConfig:
    hidden_size, num_heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    num_layers, length = fields.integer("num_hidden_layers"), fields.integer("max_position_embeddings")
    head_size = _head_size(fields, traits, hidden_size, num_heads)
    if num_heads % traits.num_kv_heads:
        raise fields.error("num_key_value_heads", f"{traits.num_kv_heads} does not divide {num_heads} attention heads")
    if fields.string("hidden_act", "silu") not in ("silu", "swish"):
        raise fields.error("hidden_act", f"{fields.string('hidden_act')!r} is not supported; supported: silu")
    if fields.has("quantization_config"):
        raise fields.error("quantization_config", "is not supported: the checkpoint must hold plain weights")
    dtype_field = "dtype" if fields.has("dtype") else "torch_dtype"
    return ArchitectureConfig(
        architecture=name,
        vocab_size=fields.integer("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=fields.integer("intermediate_size"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=traits.num_kv_heads,
        head_size=head_size,
        max_position_embeddings=length,
        rms_norm_eps=fields.number("rms_norm_eps", 1e-6),
        rope=read_rope(fields, length),
        tie_word_embeddings=fields.flag("tie_word_embeddings", False),
        attention_bias=traits.attention_bias,
        output_bias=traits.output_bias,
        mlp_bias=traits.mlp_bias,
        qk_norm=traits.qk_norm,
        windows=traits.windows if traits.windows is not None else (None,) * num_layers,
        torch_dtype=fields.string(dtype_field) if fields.has(dtype_field) else None,
    )


def _head_size(fields: ConfigFields, traits: FamilyTraits, hidden_size: int, num_heads: int) -> int:
    if not fields.has("head_dim") and traits.head_size is None and hidden_size % num_heads:
        raise fields.error("hidden_size", f"{hidden_size} is not a multiple of {num_heads} attention heads")
    head_size = fields.integer("head_dim", traits.head_size or hidden_size // num_heads)
    if head_size % 2:
        raise fields.error("head_dim", f"must be even to be rotated in pairs, not {head_size}")
    return head_size
