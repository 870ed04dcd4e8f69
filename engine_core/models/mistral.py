"""Mistral: Llama with a sliding window in every layer."""

from engine_core.models.architecture import Architecture
from engine_core.models.config import FamilyTraits
from engine_core.models.config_fields import ConfigFields
from engine_core.models.decoder import DecoderModel

__all__ = ["MISTRAL"]


def _read_traits(fields: ConfigFields) -> FamilyTraits:
    # A file without the field means the first model's 4,096; null means no window.
    is_unbounded = "sliding_window" in fields.values and not fields.has("sliding_window")
    window = None if is_unbounded else fields.integer("sliding_window", 4096)
    return FamilyTraits(
        num_kv_heads=fields.integer("num_key_value_heads", 8),
        windows=(window,) * fields.integer("num_hidden_layers"),
    )


MISTRAL = Architecture(("MistralForCausalLM",), _read_traits, DecoderModel.build)
