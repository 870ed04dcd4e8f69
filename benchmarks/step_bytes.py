"""How many bytes a decode step must read at least: every weight once, and the KV of its sequences.

Counted from the model's shapes, so that padding or a second look at the same bytes counts against the kernels.
"""

from dataclasses import dataclass

from engine_core.models.config import ArchitectureConfig
from ipc.errors import ConfigError

DTYPE_BYTES = {"auto": 2, "bfloat16": 2, "float32": 4}
SCALE_BYTES = 4
INT4_GROUP = 32
INT4_FACTOR_BYTES = 2  # scale and zero of a group of an output


@dataclass(frozen=True, slots=True)
class StepBytes:
    """``weights``: of all linears, the head included. ``kv_token``: of one token's K and V over all layers."""

    weights: int
    kv_token: int

    @classmethod
    def of(cls, config: ArchitectureConfig, dtype: str, quantization: str, kv_dtype: str) -> "StepBytes":
        """``quantization``: none, int8 or int4. Raises ConfigError for another, whose bytes are not known here."""
        if quantization not in ("none", "int8", "int4"):
            raise ConfigError(f"--quantization {quantization}: how many bytes its weights take is not known")
        *linears, head = linear_shapes(config)
        weights = sum(bytes_of_linear(*shape, dtype, quantization) for shape in linears)
        weights += bytes_of_linear(*head, dtype, "int8" if quantization == "int4" else quantization)
        if kv_dtype == "int8":
            per_head = config.head_size + SCALE_BYTES
        else:
            per_head = config.head_size * DTYPE_BYTES[dtype if kv_dtype == "auto" else kv_dtype]
        return cls(weights, 2 * config.num_kv_heads * per_head * config.num_layers)

    def of_step(self, batch: int, context: float) -> float:
        """``context``: tokens before each of the ``batch`` sequences' new ones, on average."""
        return self.weights + batch * context * self.kv_token


def bytes_of_linear(outputs: int, inputs: int, dtype: str, quantization: str) -> int:
    """Of a weight [outputs, inputs] with its scales."""
    if quantization == "int8":
        return outputs * (inputs + SCALE_BYTES)
    if quantization == "int4":
        groups = -(-inputs // INT4_GROUP)
        return outputs * (inputs // 2 + groups * INT4_FACTOR_BYTES + SCALE_BYTES)
    return outputs * inputs * DTYPE_BYTES[dtype]


def linear_shapes(config: ArchitectureConfig) -> list[tuple[int, int]]:
    """(outputs, inputs) of every linear that a step runs, the head last."""
    heads = config.num_heads * config.head_size
    layer = [
        (heads + 2 * config.num_kv_heads * config.head_size, config.hidden_size),
        (config.hidden_size, heads),
        (2 * config.intermediate_size, config.hidden_size),
        (config.hidden_size, config.intermediate_size),
    ]
    return [*layer * config.num_layers, (config.vocab_size, config.hidden_size)]
