"""Made-up weights for ``--load-format dummy``: a model's shapes and speed without its files."""

from hashlib import sha256

import torch
from torch import Tensor


class DummyWeights:
    """Random weights, as ``Weights``: each depends on the seed, its own name and the kind of device alone.

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
        # Drawn in float32, so that dtypes get the same weights, and on the tensor's own device, which has others than
        # another kind of device: the host would take minutes for billions of them.
        generator = torch.Generator(out.device).manual_seed(int.from_bytes(digest[:8], "little") >> 1)
        deviation = out.shape[1] ** -0.5 if out.dim() == 2 else 0.1
        out.copy_(torch.randn(out.shape, generator=generator, device=out.device).mul_(deviation))

    def finish(self, ignored: frozenset[str]) -> None:
        """Nothing is ever left over."""
