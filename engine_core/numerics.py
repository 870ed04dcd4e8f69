"""What decides the bits of a result: two engines with the same ``numerics_id`` continue each other's sequences."""

from hashlib import sha256
from importlib.metadata import version


def numerics_id(*, ops_name: str, isa: str, model_digest: bytes, dtype: str, kv_layout_id: str, settings: str) -> str:
    """Octavo's version, code path, model, dtype and KV layout, as 32 hexadecimal digits. The reference kernels are
    torch's matrix products, so torch's version counts too."""
    parts = [version("octavo"), version("torch"), ops_name, isa, model_digest.hex(), dtype, kv_layout_id, settings]
    return sha256("\n".join(parts).encode()).hexdigest()[:32]
