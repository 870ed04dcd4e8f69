"""Runs plans on one device in this process."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import structlog

from engine_core.device.queue import Device, OutOfMemory, Result
from engine_core.runner.forward_batch import ForwardBatch
from engine_core.runner.model_runner import ForwardResult, ModelRunner
from engine_core.runner.named_runner import NamedRunner, Runner
from engine_core.step import (
    ModelRunnerOutput,
    NameRange,
    ScheduledSequence,
    SchedulerOutput,
    SequenceOutput,
    StepFailure,
    StepHandle,
)
from kernels.ops import Samples

__all__ = ["UniprocExecutor"]

log = structlog.get_logger("octavo.engine")


class UniprocHandle:
    """A launched step; sampled already, or after ``launch_sample``."""

    def __init__(self, runner: Runner, batch: ForwardBatch, forward: Result[ForwardResult]) -> None:
        self.batch, self.forward = batch, forward
        self.samples: Result[Samples] | None = None
        self._runner = runner

    @property
    def needs_commit(self) -> bool:
        """Some rows wait for ``launch_sample``."""
        return any(entry.needs_commit for entry in self.batch.plan.scheduled)

    def result(self) -> ModelRunnerOutput:
        """Wait for forward and sampling; raises what either raised."""
        if self.samples is None:
            raise RuntimeError("the step was not sampled: its rows wait for launch_sample")
        samples = self.samples.result()
        return self._runner.read(self.batch, self.forward.result(), samples)


class TooLargeHandle:
    """A sequence that the device has too little memory for, even alone."""

    def result(self) -> ModelRunnerOutput:
        """Its failure."""
        return ModelRunnerOutput((SequenceOutput(failure=StepFailure.OUT_OF_MEMORY),))


class PartsHandle:
    """A step that was too large for the device's memory, as steps of some of its sequences each, in order."""

    def __init__(self, parts: list[UniprocHandle | TooLargeHandle]) -> None:
        self.parts = parts

    def result(self) -> ModelRunnerOutput:
        """As of one step."""
        return ModelRunnerOutput(tuple(output for part in self.parts for output in part.result().sequences))


class UniprocExecutor:
    """One runner on one device."""

    def __init__(self, runner: ModelRunner, device: Device) -> None:
        self.runner: Runner = runner
        self.device, self._plain_runner = device, runner

    def launch(self, plan: SchedulerOutput) -> StepHandle:
        """Start a step; it is sampled at once unless a row waits for the commit before it. One that the device has too
        little memory for is cut into smaller ones, which gives every row the same result."""
        batch = self.runner.prepare(plan)
        try:
            return self._launch(batch)
        except OutOfMemory as error:
            if not batch.is_begun:
                raise
            log.warning("a step was too large for the device's memory", tokens=plan.num_tokens, reason=str(error))
        rest = replace(plan, bindings=(), block_table_updates=(), block_copies=())
        return PartsHandle(list(self._launch_in_parts(rest, plan.scheduled)))

    def launch_sample(self, handle: StepHandle, masks: dict[int, bytes]) -> None:
        """Sample all rows of the step, those with a mask under it."""
        if isinstance(handle, UniprocHandle):
            self._sample(handle, masks)
        elif isinstance(handle, PartsHandle):
            for part in handle.parts:
                if isinstance(part, UniprocHandle) and part.needs_commit:
                    slots = {entry.slot for entry in part.batch.plan.scheduled}
                    self._sample(part, {slot: mask for slot, mask in masks.items() if slot in slots})

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

    def _launch(self, batch: ForwardBatch) -> UniprocHandle:
        """Raises OutOfMemory."""
        handle = UniprocHandle(self.runner, batch, self.device.launch(partial(self.runner.forward, batch)))
        if not handle.needs_commit:
            self._sample(handle, {})
        return handle

    def _sample(self, handle: UniprocHandle, masks: dict[int, bytes]) -> None:
        batch, forward, runner = handle.batch, handle.forward, self.runner
        handle.samples = self.device.launch(lambda: runner.sample(batch, forward.in_order(), masks))

    def _launch_in_parts(
        self, plan: SchedulerOutput, entries: tuple[ScheduledSequence, ...]
    ) -> Iterator[UniprocHandle | TooLargeHandle]:
        """The entries once more, now that nothing lies in pieces; else in halves, and those in halves, until each fits
        or is alone."""
        try:
            handle = self._launch(self.runner.prepare(replace(plan, scheduled=entries)))
        except OutOfMemory:
            handle = None
        if handle is not None:
            yield handle
        elif len(entries) == 1:
            yield TooLargeHandle()
        else:
            middle = len(entries) // 2
            yield from self._launch_in_parts(plan, entries[:middle])
            yield from self._launch_in_parts(plan, entries[middle:])
