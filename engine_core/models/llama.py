"""Llama 2, 3, 3.1, 3.2, SmolLM2 and others of the same shape."""

from engine_core.models.architecture import Architecture
from engine_core.models.config import FamilyTraits
from engine_core.models.config_fields import ConfigFields
from engine_core.models.decoder import DecoderModel

__all__ = ["LLAMA"]


def _read_traits(fields: ConfigFields) -> FamilyTraits:
    attention_bias = fields.flag("attention_bias", False)
    return FamilyTraits(
        num_kv_heads=fields.integer("num_key_value_heads", fields.integer("num_attention_heads")),
        attention_bias=attention_bias,
        output_bias=attention_bias,
        mlp_bias=fields.flag("mlp_bias", False),
    )


LLAMA = Architecture(("LlamaForCausalLM",), _read_traits, DecoderModel.build)
