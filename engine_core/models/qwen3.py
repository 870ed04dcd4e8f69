"""Qwen3: Llama with a norm on each head of q and k, and a head size of its own."""

from engine_core.models.architecture import Architecture
from engine_core.models.config import FamilyTraits
from engine_core.models.config_fields import ConfigFields
from engine_core.models.decoder import DecoderModel
from engine_core.models.layer_windows import read_layer_windows

__all__ = ["QWEN3"]


def _read_traits(fields: ConfigFields) -> FamilyTraits:
    attention_bias = fields.flag("attention_bias", False)
    return FamilyTraits(
        num_kv_heads=fields.integer("num_key_value_heads"),
        head_size=128,
        attention_bias=attention_bias,
        output_bias=attention_bias,
        qk_norm=True,
        windows=read_layer_windows(fields),
    )


QWEN3 = Architecture(("Qwen3ForCausalLM",), _read_traits, DecoderModel.build)
