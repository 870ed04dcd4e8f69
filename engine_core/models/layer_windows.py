"""Which layers of the Qwen families look through a sliding window."""

from engine_core.models.config_fields import ConfigFields

_FULL, _SLIDING = "full_attention", "sliding_attention"


def read_layer_windows(fields: ConfigFields) -> tuple[int | None, ...]:
    """A window in positions for each layer, or None: from ``layer_types``, else ``max_window_layers``.

    Raises ConfigError if ``layer_types`` does not name each layer's type.
    """
    num_layers = fields.integer("num_hidden_layers")
    if not (fields.flag("use_sliding_window", False) and fields.has("sliding_window")):
        return (None,) * num_layers
    window = fields.integer("sliding_window")
    if not fields.has("layer_types"):
        first = fields.integer("max_window_layers", 28, minimum=0)
        return tuple(window if layer >= first else None for layer in range(num_layers))
    types = fields.strings("layer_types")
    if len(types) != num_layers or not set(types) <= {_FULL, _SLIDING}:
        raise fields.error("layer_types", f"must hold {num_layers} times {_FULL} or {_SLIDING}")
    return tuple(window if layer_type == _SLIDING else None for layer_type in types)
