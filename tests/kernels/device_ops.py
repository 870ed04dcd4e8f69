"""Operations of a backend on another device, for tests whose tensors are the host's.

Whole memories travel there and back, so that tensors that share one still do, at the same distances; and whatever an
operation writes, it writes where the test sees it.
"""

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor

from kernels.ops import AttentionBatch, Logprobs, Ops, SampleRows, Samples


class Travel:
    """One call's tensors: each memory is copied once, and back."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._memories: dict[int, tuple[Tensor, Tensor]] = {}  # by address: bytes here and there

    def there(self, value: Any) -> Any:
        """The same on the device. Packed weights, and what a backend planned, are there already."""
        if isinstance(value, Tensor):
            return self._tensor(value)
        if isinstance(value, AttentionBatch | SampleRows):
            moved = {field.name: self.there(getattr(value, field.name)) for field in fields(value)}
            return replace(value, **moved)
        if isinstance(value, tuple):
            return tuple(self.there(part) for part in value)
        return value

    def back(self) -> None:
        """Everything that was written."""
        for here, there in self._memories.values():
            here.copy_(there)

    def _tensor(self, tensor: Tensor) -> Tensor:
        if tensor.device.type != "cpu":
            return tensor
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._memories:
            here = torch.empty(0, dtype=torch.uint8).set_(storage)
            self._memories[storage.data_ptr()] = here, torch.empty_like(here, device=self._device).copy_(here)
        _, there = self._memories[storage.data_ptr()]
        result = torch.empty(0, dtype=tensor.dtype, device=self._device)
        return result.set_(there.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())


def to_host(value: Any) -> Any:
    """A result as the test wants it."""
    if isinstance(value, Tensor):
        return value.cpu()
    if isinstance(value, Samples | Logprobs | AttentionBatch):
        return replace(value, **{field.name: to_host(getattr(value, field.name)) for field in fields(value)})
    return value


class DeviceOps:
    """``ops`` on ``device``, as ``kernels.ops.Ops`` for tensors of the host. Packed weights stay on the device."""

    def __init__(self, ops: Ops, device: torch.device) -> None:
        self._ops, self._device = ops, device

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._ops, name)
        return self._operation(attribute) if callable(attribute) and not is_dataclass(attribute) else attribute

    def _operation(self, operation: Callable[..., Any]) -> Callable[..., Any]:
        def on_device(*arguments: Any, **named: Any) -> Any:
            travel = Travel(self._device)
            there = [travel.there(argument) for argument in arguments]
            result = operation(*there, **{name: travel.there(value) for name, value in named.items()})
            travel.back()
            return to_host(result)

        return on_device


def on_device(ops: Ops, device: torch.device) -> Ops:
    """``ops`` for tensors of the host."""
    return cast(Ops, DeviceOps(ops, device))
