"""Runs plans on one device in this process."""

from functools import partial

from engine_core.device.queue import Device, Result
from engine_core.runner.forward_batch import ForwardBatch
from engine_core.runner.model_runner import ForwardResult, ModelRunner
from engine_core.runner.named_runner import NamedRunner, Runner
from engine_core.step import ModelRunnerOutput, NameRange, SchedulerOutput, StepHandle
from kernels.ops import Samples

__all__ = ["UniprocExecutor"]


class UniprocHandle:
    """A launched step; sampled already, or after ``launch_sample``."""

    def __init__(self, runner: Runner, batch: ForwardBatch, forward: Result[ForwardResult]) -> None:
        self.batch, self.forward = batch, forward
        self.samples: Result[Samples] | None = None
        self._runner = runner

    def result(self) -> ModelRunnerOutput:
        """Wait for forward and sampling; raises what either raised."""
        if self.samples is None:
            raise RuntimeError("the step was not sampled: its rows wait for launch_sample")
        result = self.forward.result()
        return self._runner.read(self.batch, result, self.samples.result())


class UniprocExecutor:
    """One runner on one device."""

    def __init__(self, runner: ModelRunner, device: Device) -> None:
        self.runner: Runner = runner
        self.device, self._plain_runner = device, runner

    def launch(self, plan: SchedulerOutput) -> UniprocHandle:
        """Start a step; it is sampled at once unless a row waits for the commit before it."""
        batch = self.runner.prepare(plan)
        handle = UniprocHandle(self.runner, batch, self.device.launch(partial(self.runner.forward, batch)))
        if not any(entry.needs_commit for entry in plan.scheduled):
            self.launch_sample(handle, {})
        return handle

    def launch_sample(self, handle: StepHandle, masks: dict[int, bytes]) -> None:
        """Sample all rows of the step, those with a mask under it."""
        assert isinstance(handle, UniprocHandle)
        batch, forward, runner = handle.batch, handle.forward, self.runner
        handle.samples = self.device.launch(lambda: runner.sample(batch, forward.result(), masks))

    def copy_blocks(self, copies: tuple[tuple[int, int], ...]) -> None:
        """Copies without a step."""
        self.device.launch(partial(self.runner.copy_blocks, copies)).result()

    def name_ranges(self, name_range: NameRange | None) -> None:
        """See ``engine_core.step.Executor``."""
        plain = self._plain_runner
        plain.name_ranges(name_range)
        self.runner = plain if name_range is None else NamedRunner(plain, name_range)

    def shutdown(self) -> None:
        """Wait for what runs."""
        self.device.close()
