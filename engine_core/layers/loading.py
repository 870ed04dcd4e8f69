"""What layers are made of, by the names of their tensors: read from a checkpoint or made up, fused and packed.

Knows how parts are fused and that finished parts may come from elsewhere (``LayerSource``); does not know files.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from engine_core.layers.linear import Linear, LinearPart
from kernels.ops import LinearSpec, Ops, PackedLinear, Quantization

HEAD_QUANTIZATION: dict[Quantization | None, Quantization] = {"int4": "int8"}
"""At four bits the head alone would lose about as much as all other linears."""


class Weights(Protocol):
    """A source of named tensors."""

    def fill(self, name: str, out: Tensor) -> None:
        """Put tensor ``name`` into ``out``, converted to its dtype.

        Raises ConfigError, naming the tensor, if there is none or its shape is another.
        """

    def finish(self, ignored: frozenset[str]) -> None:
        """All is loaded. Raises ConfigError if tensors are left that the model has no place for.

        ``ignored``: names that may be left.
        """


class LayerSource(Protocol):
    """A source of what layers hold. ``rows``: the checkpoint's tensors that lie one below the other, and how many
    rows each has."""

    def tensor(self, rows: Mapping[str, int], columns: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """[sum of the rows, *columns] in ``dtype``."""

    def linear(self, rows: Mapping[str, int], spec: LinearSpec, shared: Tensor | None = None) -> PackedLinear:
        """The matrix of those rows, packed. ``shared``: the same matrix, where something else holds it already."""

    def finish(self, ignored: frozenset[str]) -> None:
        """As in ``Weights``."""


@dataclass(frozen=True, slots=True)
class PackingSource:
    """Reads ``weights``, fuses them on ``device`` and packs them by ``ops``."""

    weights: Weights
    ops: Ops
    device: torch.device

    def tensor(self, rows: Mapping[str, int], columns: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Raises ConfigError for a tensor that does not fit."""
        tensor = torch.empty((sum(rows.values()), *columns), dtype=dtype, device=self.device)
        for name, part in zip(rows, torch.split(tensor, list(rows.values())), strict=True):
            self.weights.fill(name, part)
        return tensor

    def linear(self, rows: Mapping[str, int], spec: LinearSpec, shared: Tensor | None = None) -> PackedLinear:
        """Raises ConfigError for a tensor that does not fit."""
        weight = self.tensor(rows, (spec.num_inputs,), spec.dtype) if shared is None else shared
        return self.ops.pack_linear(weight, spec.segments, is_gated=spec.is_gated, quantization=spec.quantization)

    def finish(self, ignored: frozenset[str]) -> None:
        """Raises ConfigError for tensors without a place in the model."""
        self.weights.finish(ignored)


@dataclass(frozen=True, slots=True)
class LayerLoader:
    """Makes layers of what ``source`` has, in the model's ``dtype`` on ``device``."""

    source: LayerSource
    ops: Ops
    dtype: torch.dtype
    device: torch.device
    quantization: Quantization | None = None

    def embedding(self, path: str, num_rows: int, num_columns: int) -> Tensor:
        """[num_rows, num_columns] in the model's dtype."""
        return self.source.tensor({f"{path}.weight": num_rows}, (num_columns,), self.dtype)

    def norm(self, path: str, size: int) -> Tensor:
        """f32 [size]."""
        return self.source.tensor({f"{path}.weight": size}, (), torch.float32)

    def linear(
        self,
        parts: Sequence[LinearPart],
        num_inputs: int,
        *,
        has_bias: bool = False,
        segments: int = 1,
        is_gated: bool = False,
    ) -> Linear:
        """The parts fused along their rows and packed; ``segments`` and ``is_gated`` as in ``Ops.pack_linear``."""
        rows = {f"{part.path}.weight": part.num_rows for part in parts}
        num_rows = sum(rows.values())
        spec = LinearSpec(num_rows, num_inputs, self.dtype, segments, is_gated, self.quantization)
        weight = self.source.linear(rows, spec)
        biases = {f"{part.path}.bias": part.num_rows for part in parts}
        bias = self.source.tensor(biases, (), torch.float32) if has_bias else None
        return Linear(tuple(parts), weight, bias, self.ops)

    def head(self, path: str, num_rows: int, num_inputs: int, shared: Tensor | None = None) -> Linear:
        """The linear that makes logits. ``shared``: the embedding in the model's dtype, where it is this matrix too."""
        quantization = HEAD_QUANTIZATION.get(self.quantization, self.quantization)
        spec = LinearSpec(num_rows, num_inputs, self.dtype, quantization=quantization)
        weight = self.source.linear({f"{path}.weight": num_rows}, spec, shared)
        return Linear((LinearPart(path, num_rows),), weight, None, self.ops)

    def finish(self, ignored: frozenset[str] = frozenset()) -> None:
        """All is loaded. Raises ConfigError if tensors other than ``ignored`` are left."""
        self.source.finish(ignored)
