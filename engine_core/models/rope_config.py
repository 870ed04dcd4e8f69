"""How a model rotates positions, as its config.json says it.

Both spellings are read: ``rope_theta`` with ``rope_scaling``, and ``rope_parameters``.
"""

from dataclasses import dataclass
from math import log

from engine_core.models.config_fields import ConfigFields

ROPE_TYPES = ("default", "linear", "dynamic", "yarn", "llama3")


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """A rope type and its numbers; each type reads only its own.

    ``attention_factor`` multiplies cosines and sines. ``original_max_position_embeddings`` is the context length
    before scaling, in tokens.
    """

    type: str
    base: float
    original_max_position_embeddings: int
    factor: float = 1.0
    attention_factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True


def read_rope(fields: ConfigFields, max_position_embeddings: int) -> RopeConfig:
    """The rope of config.json. Raises ConfigError for a missing number or a type outside ROPE_TYPES."""
    # transformers lets rope_scaling win where a file carries both.
    rope = fields.section("rope_scaling" if fields.has("rope_scaling") else "rope_parameters")
    type_name = "rope_type" if rope.has("rope_type") else "type"
    rope_type = rope.string(type_name, "default")
    nested = [name for name, value in rope.values.items() if type(value) is dict]
    if nested:
        raise rope.error(nested[0], "is an object: a rope of its own for some layers is not supported")
    if rope_type not in ROPE_TYPES:
        raise rope.error(type_name, f"{rope_type!r} is not supported; supported: {', '.join(ROPE_TYPES)}")
    for section in (fields, rope):
        if section.number("partial_rotary_factor", 1.0) != 1.0:
            raise section.error("partial_rotary_factor", "other than 1 is not supported")
    base = rope.number("rope_theta", fields.number("rope_theta", 10_000.0))
    original = fields if fields.has("original_max_position_embeddings") else rope
    length = original.integer("original_max_position_embeddings", max_position_embeddings)
    match rope_type:
        case "linear":
            return RopeConfig(rope_type, base, length, factor=rope.number("factor"))
        case "dynamic":
            # The length from which this type starts to scale is always the config's own.
            return RopeConfig(rope_type, base, max_position_embeddings, factor=rope.number("factor"))
        case "llama3":
            low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
            if low >= high:
                raise rope.error("high_freq_factor", f"must be above low_freq_factor {low}, not {high}")
            return RopeConfig(
                rope_type, base, length, factor=rope.number("factor"), low_freq_factor=low, high_freq_factor=high
            )
        case "yarn":
            return _read_yarn(rope, base, length)
        case _:
            return RopeConfig(rope_type, base, length)


def _read_yarn(rope: ConfigFields, base: float, length: int) -> RopeConfig:
    """YaRN (arXiv 2309.00071); mscale and mscale_all_dim as DeepSeek's configs use them."""
    factor = rope.number("factor")
    if rope.has("attention_factor"):
        attention_factor = rope.number("attention_factor")
    elif rope.has("mscale") and rope.has("mscale_all_dim"):
        attention_factor = _magnitude(factor, rope.number("mscale")) / _magnitude(factor, rope.number("mscale_all_dim"))
    else:
        attention_factor = _magnitude(factor, 1.0)
    return RopeConfig(
        "yarn",
        base,
        length,
        factor=factor,
        attention_factor=attention_factor,
        beta_fast=rope.number("beta_fast", 32.0),
        beta_slow=rope.number("beta_slow", 1.0),
        truncate=rope.flag("truncate", True),
    )


def _magnitude(factor: float, scale: float) -> float:
    return 0.1 * scale * log(factor) + 1.0 if factor > 1 else 1.0
