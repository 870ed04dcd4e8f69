"""Which GPU kernels are chosen for. Knows torch.cuda, no kernel."""

from dataclasses import dataclass

import torch
import triton

INTERPRETER = "interpreter"
LEAST_CAPABILITY = 80
LEAST_FP8_CAPABILITY = 90


class UnsupportedDevice(Exception):
    """No GPU, or one that these kernels cannot run on. The message is one line."""


@dataclass(frozen=True, slots=True)
class Target:
    """``name``: as the driver says it. ``capability``: 90 for 9.0. Interpreted kernels have the oldest GPU's."""

    name: str
    capability: int
    num_multiprocessors: int
    batch_invariant: bool = False

    @property
    def isa(self) -> str:
        """What decides a kernel's bits, beside its source."""
        where = self.name if self.name == INTERPRETER else f"sm_{self.capability}"
        return f"{where}-triton-{triton.__version__}-{'invariant' if self.batch_invariant else 'library'}"

    @property
    def has_fp8(self) -> bool:
        """Whether numbers of 8 bits can be multiplied and converted."""
        return self.capability >= LEAST_FP8_CAPABILITY


def interpreter(*, batch_invariant: bool = False) -> Target:
    """What the interpreter runs: a GPU that can all."""
    return Target(INTERPRETER, LEAST_FP8_CAPABILITY, 2, batch_invariant)


def find_target(*, batch_invariant: bool = False) -> Target:
    """The current device. Raises UnsupportedDevice."""
    if not torch.cuda.is_available():
        built = torch.version.cuda is not None
        raise UnsupportedDevice(
            "torch sees no CUDA device" if built else f"this torch ({torch.__version__}) is built without CUDA"
        )
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    capability = properties.major * 10 + properties.minor
    if capability < LEAST_CAPABILITY:
        raise UnsupportedDevice(
            f"{properties.name} has compute capability {properties.major}.{properties.minor}, the kernels need 8.0"
        )
    return Target(properties.name, capability, properties.multi_processor_count, batch_invariant)
