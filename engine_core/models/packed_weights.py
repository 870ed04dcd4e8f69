"""A model's packed weights from the cache, or made once more and kept there.

Two sources of layers: one records what another makes, one gives it back. Everything that does not fit is a miss, so a
model is built of the checkpoint or of exactly what was once made of it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from engine_core.layers.loading import LayerSource
from engine_core.models.packed_weights_file import PackedFile, UnusableFile
from kernels.ops import LinearSpec, PackedFormat, PackedLinear


@dataclass(frozen=True, slots=True)
class RecordingSource:
    """What ``source`` makes, remembered: ``tensors`` by name, and the facts of ``Index`` about packed matrices."""

    source: LayerSource
    packed_format: PackedFormat
    tensors: dict[str, Tensor] = field(default_factory=dict)
    facts: dict[str, tuple[str, int, int]] = field(default_factory=dict)

    def tensor(self, rows: Mapping[str, int], columns: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """As ``source`` makes it."""
        tensor = self.tensors[_name(rows)] = self.source.tensor(rows, columns, dtype)
        return tensor

    def linear(self, rows: Mapping[str, int], spec: LinearSpec, shared: Tensor | None = None) -> PackedLinear:
        """As ``source`` makes it."""
        weight = self.source.linear(rows, spec, shared)
        name = _name(rows)
        self.facts[name] = _facts(weight)
        self.tensors.update({f"{name}:{part}": tensor for part, tensor in self.packed_format.tensors(weight).items()})
        return weight

    def finish(self, ignored: frozenset[str]) -> None:
        """As ``source`` does."""
        self.source.finish(ignored)


@dataclass(frozen=True, slots=True)
class RestoringSource:
    """What ``file`` has, on ``device``. Raises UnusableFile for whatever the model asks for and it does not have."""

    file: PackedFile
    packed_format: PackedFormat
    device: torch.device
    asked: set[str] = field(default_factory=set)

    def tensor(self, rows: Mapping[str, int], columns: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Raises UnusableFile if there is none, or one of another shape or dtype."""
        name, shape = _name(rows), (sum(rows.values()), *columns)
        tensor = self._tensor(name)
        if tensor.dtype != dtype or tuple(tensor.shape) != shape:
            raise UnusableFile(f"{name} is {tensor.dtype} {list(tensor.shape)}, not {dtype} {list(shape)}")
        return tensor

    def linear(self, rows: Mapping[str, int], spec: LinearSpec, shared: Tensor | None = None) -> PackedLinear:
        """Raises UnusableFile if there is none, or one of another shape or layout."""
        name = _name(rows)
        parts = {key: key.removeprefix(f"{name}:") for key in self.file.index.tensors if key.startswith(f"{name}:")}
        tensors = {part: self._tensor(key) for key, part in parts.items()}
        try:
            weight = self.packed_format.restore(spec, tensors)
        except (ValueError, TypeError) as error:
            raise UnusableFile(f"{name}: {error}") from error
        if self.file.index.facts.get(name) != _facts(weight):
            raise UnusableFile(f"{name} is not packed as {' '.join(map(str, _facts(weight)))}")
        return weight

    def finish(self, ignored: frozenset[str]) -> None:
        """Raises UnusableFile if the file has more than the model asked for."""
        if left := self.file.index.tensors.keys() - self.asked:
            raise UnusableFile(f"the model has no place for {min(left)}")

    def _tensor(self, name: str) -> Tensor:
        tensor = self.file.tensor(name)
        if tensor is None:
            raise UnusableFile(f"there is no {name}")
        self.asked.add(name)
        return tensor.to(self.device)


def _name(rows: Mapping[str, int]) -> str:
    return "+".join(rows)


def _facts(weight: PackedLinear) -> tuple[str, int, int]:
    return weight.layout_id, weight.num_outputs, weight.num_inputs
