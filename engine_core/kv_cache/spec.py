"""What a model's KV cache looks like from the host: sizes in bytes, never tensors."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KVSpec:
    """One layer's cache. ``layout_id`` names the layout inside a block, which only the attention kernels know."""

    kind: str  # "full" or "window"
    block_size: int
    bytes_per_block: int
    layout_id: str
    window: int | None = None


def bytes_per_block(specs: tuple[KVSpec, ...]) -> int:
    """Bytes that one block takes over all layers."""
    return sum(spec.bytes_per_block for spec in specs)
