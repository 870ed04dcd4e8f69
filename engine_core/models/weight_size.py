"""How many bytes a model's weights take, from its config alone: to say that they do not fit before they are read."""

from math import ceil

from engine_core.models.config import ArchitectureConfig
from kernels.ops import Quantization

BITS: dict[Quantization, float] = {"int8": 8, "fp8": 8, "int4": 5}  # int4: a scale and a zero for each group of 32


def weight_bytes(config: ArchitectureConfig, dtype_bytes: int, quantization: Quantization | None) -> int:
    """Without norms, biases and the scales of outputs, which are less than a thousandth."""
    heads = (config.num_heads + 2 * config.num_kv_heads) * config.head_size
    attention = config.hidden_size * (heads + config.num_heads * config.head_size)
    layer = attention + 3 * config.hidden_size * config.intermediate_size
    table = config.vocab_size * config.hidden_size
    bits = 8 * dtype_bytes if quantization is None else BITS[quantization]
    head_bits = max(bits, 8) if quantization is not None else bits
    # A head that is the embedding, too, is packed anew when it is quantized.
    has_own_head = not config.tie_word_embeddings or quantization is not None
    return table * dtype_bytes + ceil((config.num_layers * layer * bits + has_own_head * table * head_bits) / 8)
