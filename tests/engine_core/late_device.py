"""A device that does nothing until somebody waits for it: what a GPU may do at worst, on the CPU.

Closures and copies queue, and run only as far as a result or an event is waited for. Arrays travel through pinned
buffers that are memory of their own, so whatever the host changes too early is seen. A recorder makes its recordings
some launches after they were asked for.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from engine_core.device.cpu import CpuDevice, CpuResult
from engine_core.device.queue import OutOfMemory
from engine_core.device.staging import PinnedRing, PinnedStage
from engine_core.runner.forward_batch import ForwardBatch

T = TypeVar("T")
LAUNCHES_TO_RECORD = 3


@dataclass(slots=True, eq=False)
class LateResult:
    """A closure's value, once the queue has come to it."""

    device: "LateDevice"
    closure: Callable[[], Any]
    outcome: list[Any] = field(default_factory=list)

    def run(self) -> None:
        self.outcome.append(self.closure())

    def result(self) -> Any:
        while not self.outcome:
            self.device.queue.popleft()()
        return self.outcome[0]

    def in_order(self) -> Any:
        assert self.outcome, "a closure ran before one that it follows"
        return self.outcome[0]


@dataclass(slots=True, eq=False)
class LateEvent:
    """Recorded inside closures; waited for by the host."""

    device: "LateDevice"

    def record(self) -> None:
        """It happens as the queue runs."""

    def synchronize(self) -> None:
        """The copy may lie anywhere in the queue."""
        self.device.run_all()


Record = tuple[int, Callable[[], object], Callable[[], None], Callable[[Callable[[], None]], None]]


@dataclass(slots=True)
class LateRecorder:
    """Replays by running once more. Warms up somewhere in the device's queue, perhaps in the midst of a step."""

    asked: list[Record] = field(default_factory=list)
    num_launches: int = 0
    num_recorded: int = 0
    num_replays: int = 0

    def record(
        self, warm_up: Callable[[], object], run: Callable[[], None], done: Callable[[Callable[[], None]], None]
    ) -> None:
        self.asked.append((self.num_launches + LAUNCHES_TO_RECORD, warm_up, run, done))

    def count_launch(self, queue: deque[Callable[[], None]]) -> None:
        self.num_launches += 1
        while self.asked and self.asked[0][0] <= self.num_launches:
            _, warm_up, run, done = self.asked.pop(0)
            queue.append(partial(self._record, warm_up, run, done))

    def wait(self) -> None:
        self.num_launches += LAUNCHES_TO_RECORD
        queue: deque[Callable[[], None]] = deque()
        self.count_launch(queue)
        for record in queue:
            record()

    def _record(
        self, warm_up: Callable[[], object], run: Callable[[], None], done: Callable[[Callable[[], None]], None]
    ) -> None:
        warm_up()
        self.num_recorded += 1
        done(partial(self._replay, run))

    def _replay(self, run: Callable[[], None]) -> None:
        self.num_replays += 1
        run()


class LateDevice:
    """``recorder``: of decode steps, or none. ``memory_bytes``: of its own, of which nothing is ever taken."""

    torch_device = torch.device("cpu")
    name = "late"
    overlaps_by_default = True

    def __init__(self, recorder: LateRecorder | None = None, *, memory_bytes: int | None = None) -> None:
        self.has_own_memory, self.memory_bytes = memory_bytes is not None, memory_bytes or 2**30
        self.step_bytes = 0
        self.queue: deque[Callable[[], None]] = deque()
        self.events: list[LateEvent] = []
        self._recorder = recorder
        self._staging = PinnedRing(self.torch_device, self._empty_pinned, self._make_event)

    def launch(self, closure: Callable[[], T]) -> LateResult:
        result = LateResult(self, closure)
        self.queue.append(result.run)
        if self._recorder is not None:
            self._recorder.count_launch(self.queue)
        return result

    def run_all(self) -> None:
        while self.queue:
            self.queue.popleft()()

    def stage(self) -> PinnedStage:
        return self._staging.stage()

    def to_host(self, tensor: Tensor) -> Tensor:
        return tensor.clone()

    def empty(self, shape: tuple[int, ...]) -> Tensor:
        return torch.full(shape, 255, dtype=torch.uint8)

    def empty_on_host(self, shape: tuple[int, ...]) -> Tensor:
        return torch.full(shape, 255, dtype=torch.uint8)

    def free_memory_bytes(self) -> int:
        return self.memory_bytes

    def peak_memory_bytes(self, run: Callable[[], object]) -> int:
        run()
        return self.step_bytes

    def graph_recorder(self) -> LateRecorder | None:
        return self._recorder

    def close(self) -> None:
        self.run_all()

    def _empty_pinned(self, num_bytes: int) -> Tensor:
        return torch.full((num_bytes,), 255, dtype=torch.uint8)

    def _make_event(self) -> LateEvent:
        self.events.append(LateEvent(self))
        return self.events[-1]


class SmallDevice(CpuDevice):
    """Has too little memory for steps of more than ``max_rows`` rows, which it finds out when it has computed them."""

    def __init__(self, max_rows: int) -> None:
        super().__init__(overlap=False)
        self.max_rows = max_rows
        self.num_refused = 0

    def launch(self, closure: Callable[[], T]) -> CpuResult[T]:
        result = super().launch(closure)
        batches = [part for part in getattr(closure, "args", ()) if isinstance(part, ForwardBatch)]
        if any(len(batch.rows.slots) > self.max_rows for batch in batches):
            self.num_refused += 1
            raise OutOfMemory("so it is said")
        return result
