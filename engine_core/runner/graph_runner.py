"""Chooses how a step is computed: recorded and replayed as one call where somebody can, else operation by operation.

The CPU's kernels record any step by themselves; a device may record those in which everybody decodes. Knows tensors and
counts, nothing of requests.
"""

from dataclasses import dataclass

from torch import Tensor

from engine_core.runner.decode_graphs import DecodeGraphs
from engine_core.runner.forward_batch import StepRows
from engine_core.runner.recorded_step import RecordedStep
from engine_core.runner.step_computation import StepComputation
from engine_core.step import NameRange


@dataclass(frozen=True, slots=True)
class GraphSizes:
    """The largest step: rows, sequences (as many rows may be sampled), and blocks of one sequence."""

    max_rows: int
    max_sequences: int
    max_blocks: int


class GraphRunner:
    """Callable: a step's rows → (hidden f32 [T, hidden], logits f32 [R, V]), valid until the next step."""

    def __init__(self, computation: StepComputation, sizes: GraphSizes, decode_graphs: DecodeGraphs | None) -> None:
        self._computation = computation
        self._num_layers_done = 0
        self._decode_graphs = decode_graphs
        self._recorded = RecordedStep.record(computation, sizes.max_rows, sizes.max_sequences, sizes.max_blocks)

    @property
    def num_done(self) -> int:
        """Moves while a step makes progress; read by another thread."""
        return self._num_layers_done if self._recorded is None else self._recorded.num_done

    def name_ranges(self, name_range: NameRange | None) -> None:
        """See ``engine_core.step.Executor``. What runs operations one by one shows them anyway."""
        if self._recorded is not None:
            self._recorded.name_ranges(name_range)

    def __call__(self, rows: StepRows) -> tuple[Tensor, Tensor]:
        if self._recorded is not None:
            return self._recorded(rows)
        graph = self._decode_graphs.find(rows) if self._decode_graphs is not None else None
        outputs = self._computation(rows) if graph is None else graph(rows)
        self._num_layers_done += self._computation.model.num_layers
        return outputs
