"""Qwen2 and Qwen2.5: Llama with biases on q, k and v, and a window in the later layers if asked for."""

from engine_core.models.architecture import Architecture
from engine_core.models.config import FamilyTraits
from engine_core.models.config_fields import ConfigFields
from engine_core.models.decoder import DecoderModel
from engine_core.models.layer_windows import read_layer_windows

__all__ = ["QWEN2"]


def _read_traits(fields: ConfigFields) -> FamilyTraits:
    return FamilyTraits(
        num_kv_heads=fields.integer("num_key_value_heads"),
        attention_bias=True,
        windows=read_layer_windows(fields),
    )


QWEN2 = Architecture(("Qwen2ForCausalLM",), _read_traits, DecoderModel.build)
