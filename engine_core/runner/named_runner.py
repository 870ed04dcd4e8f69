"""A runner whose parts have names in a profile."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from engine_core.runner.forward_batch import ForwardBatch
from engine_core.runner.model_runner import ForwardResult
from engine_core.step import ModelRunnerOutput, NameRange, SchedulerOutput
from kernels.ops import Samples


class Runner(Protocol):
    """What an executor asks ``ModelRunner``."""

    def prepare(self, plan: SchedulerOutput) -> ForwardBatch: ...

    def forward(self, batch: ForwardBatch) -> ForwardResult: ...

    def sample(self, batch: ForwardBatch, result: ForwardResult, masks: dict[int, bytes]) -> Samples: ...

    def read(self, batch: ForwardBatch, result: ForwardResult, samples: Samples) -> ModelRunnerOutput: ...

    def copy_blocks(self, copies: Iterable[tuple[int, int]]) -> None: ...


@dataclass(frozen=True, slots=True)
class NamedRunner:
    """``runner``, with a range around each of its parts; the step's number and size are in that of the first."""

    runner: Runner
    name_range: NameRange

    def prepare(self, plan: SchedulerOutput) -> ForwardBatch:
        """See ``ModelRunner``."""
        with self.name_range(f"octavo.prepare step {plan.step}: {plan.num_tokens} tokens of {len(plan.scheduled)}"):
            return self.runner.prepare(plan)

    def forward(self, batch: ForwardBatch) -> ForwardResult:
        """See ``ModelRunner``."""
        with self.name_range("octavo.forward"):
            return self.runner.forward(batch)

    def sample(self, batch: ForwardBatch, result: ForwardResult, masks: dict[int, bytes]) -> Samples:
        """See ``ModelRunner``."""
        with self.name_range("octavo.sample"):
            return self.runner.sample(batch, result, masks)

    def read(self, batch: ForwardBatch, result: ForwardResult, samples: Samples) -> ModelRunnerOutput:
        """See ``ModelRunner``."""
        with self.name_range("octavo.read"):
            return self.runner.read(batch, result, samples)

    def copy_blocks(self, copies: Iterable[tuple[int, int]]) -> None:
        """See ``ModelRunner``."""
        with self.name_range("octavo.copy_blocks"):
            self.runner.copy_blocks(copies)
