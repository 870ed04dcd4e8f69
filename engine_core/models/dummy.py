"""Made-up weights for ``--load-format dummy``: a model's shapes and speed without its files."""

from hashlib import sha256

import torch
from torch import Tensor


class DummyWeights:
    """Random weights, as ``Weights``: each depends on the seed and its own name alone.

    Norms are 1; matrices have standard deviation 1/√(inputs), which keeps activations and logits near 1; biases
    are a tenth of that.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def fill(self, name: str, out: Tensor) -> None:
        """Put the tensor of that name into ``out``."""
        if out.dim() == 1 and not name.endswith(".bias"):
            out.fill_(1.0)
            return
        digest = sha256(f"{self._seed}:{name}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
        deviation = out.shape[1] ** -0.5 if out.dim() == 2 else 0.1
        # Drawn in float32 on the host, so that dtypes and devices get the same weights.
        out.copy_(torch.randn(out.shape, generator=generator).mul_(deviation))

    def finish(self, ignored: frozenset[str]) -> None:
        """Nothing is ever left over."""
