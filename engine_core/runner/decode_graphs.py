"""Recordings of steps in which everybody decodes, for a ladder of sizes, made when a size is first wanted.

A step is filled up to the next size with rows of the spare slot, whose K and V go to the spare block. Until a size is
recorded, and for all other steps, nothing is found and the step runs operation by operation. Knows no CUDA: what
records is the device's.
"""

from collections.abc import Callable, Sequence

import structlog
import torch
from torch import Tensor

from engine_core.device.queue import GraphRecorder
from engine_core.runner.forward_batch import StepRows
from engine_core.runner.step_computation import StepComputation

log = structlog.get_logger("octavo.engine")

CONTEXT_TOKENS = 1024
CONTEXT_STEP = 4
Size = tuple[int, int]
"""Rows, and blocks of the longest sequence."""


def default_row_ladder(max_rows: int) -> tuple[int, ...]:
    """Every size that wastes little: 1, 2, 4, then by 8 to 256, then by 16 to 512."""
    ladder = [1, 2, 4, *range(8, 257, 8), *range(272, 513, 16)]
    return tuple(size for size in ladder if size < max_rows) + ((max_rows,) if max_rows <= ladder[-1] else ())


def block_ladder(max_blocks: int, block_size: int) -> tuple[int, ...]:
    """Lengths of context, in blocks: attention of a recorded step is laid out for the longest sequence it may have."""
    ladder, tokens = [], CONTEXT_TOKENS
    while tokens < max_blocks * block_size:
        ladder.append(tokens // block_size)
        tokens *= CONTEXT_STEP
    return (*ladder, max_blocks)


class DecodeGraph:
    """One size, recorded. Callable: as ``GraphRunner``. ``outputs``: of the largest size, which all share."""

    def __init__(
        self, rows: StepRows, spare_slot: int, outputs: tuple[Tensor, Tensor], replay: Callable[[], None]
    ) -> None:
        self._rows, self._spare_slot, self._outputs, self._replay = rows, spare_slot, outputs, replay
        self._num_last = 0

    def __call__(self, rows: StepRows) -> tuple[Tensor, Tensor]:
        num_rows, fixed = len(rows.slots), self._rows
        fixed.slots[:num_rows] = rows.slots
        fixed.positions[:num_rows] = rows.positions
        if num_rows < self._num_last:
            fixed.slots[num_rows : self._num_last] = self._spare_slot
            fixed.positions[num_rows : self._num_last] = 0
        self._num_last = num_rows
        self._replay()
        hidden, logits = self._outputs
        return hidden[:num_rows], logits[:num_rows]


class DecodeGraphs:
    """``row_ladder`` and ``blocks``: ascending."""

    def __init__(
        self, computation: StepComputation, recorder: GraphRecorder, row_ladder: Sequence[int], blocks: Sequence[int]
    ) -> None:
        self._computation, self._recorder = computation, recorder
        self._row_ladder, self._block_ladder = tuple(row_ladder), tuple(blocks)
        config, device = computation.model.config, computation.caches[0].device
        most_rows = max(row_ladder, default=0)
        # Not each recording's own: of all sizes together these would be gigabytes.
        self._outputs = (
            torch.empty((most_rows, config.hidden_size), device=device),
            torch.empty((most_rows, config.vocab_size), device=device),
        )
        self._graphs: dict[Size, DecodeGraph] = {}
        self._asked_for: set[Size] = set()

    def find(self, rows: StepRows) -> DecodeGraph | None:
        """The recording that these rows fit into. One that is not there yet is asked for."""
        if not rows.is_decode:
            return None
        size = self._size(len(rows.slots), rows.num_blocks)
        if size is None:
            return None
        graph = self._graphs.get(size)
        if graph is None and size not in self._asked_for:
            self._asked_for.add(size)
            self._ask(size)
        return graph

    def _size(self, num_rows: int, num_blocks: int) -> Size | None:
        for most_rows in self._row_ladder:
            if num_rows <= most_rows:
                return most_rows, next(most for most in self._block_ladder if num_blocks <= most)
        return None

    def _ask(self, size: Size) -> None:
        num_rows, num_blocks = size
        device, spare_slot = self._computation.caches[0].device, self._computation.slots.spare_slot
        slots = torch.full((num_rows,), spare_slot, dtype=torch.int64, device=device)
        rows = StepRows(
            slots=slots,
            positions=torch.zeros_like(slots),
            sequence_slots=slots,
            query_start=torch.arange(num_rows + 1, dtype=torch.int32, device=device),
            sample_indices=torch.arange(num_rows, dtype=torch.int64, device=device),
            num_blocks=num_blocks,
        )

        def keep(replay: Callable[[], None]) -> None:
            self._graphs[size] = DecodeGraph(rows, spare_slot, self._outputs, replay)
            log.debug("decode step recorded", rows=num_rows, blocks=num_blocks)

        self._recorder.record(lambda: self._computation(rows), lambda: self._compute(rows), keep)

    def _compute(self, rows: StepRows) -> None:
        for output, value in zip(self._outputs, self._computation(rows), strict=True):
            output[: len(value)] = value
