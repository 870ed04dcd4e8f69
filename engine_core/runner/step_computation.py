"""What a step computes, from its rows to logits: once, for steps that run operation by operation and recorded ones."""

from dataclasses import dataclass

from torch import Tensor

from engine_core.models.decoder import DecoderModel
from engine_core.runner.forward_batch import StepRows
from engine_core.runner.slot_state import SlotState
from kernels.ops import AttentionBatch, KVLayout


@dataclass(frozen=True, slots=True)
class StepInputs:
    """One step: ids i64 [T], its rows' attention, and which rows are sampled, i64 [R]."""

    input_ids: Tensor
    attention: AttentionBatch
    sample_indices: Tensor


@dataclass(frozen=True, slots=True)
class StepComputation:
    """On the device queue. ``caches``: u8 [blocks, bytes] of each layer."""

    model: DecoderModel
    caches: list[Tensor]
    layout: KVLayout
    slots: SlotState

    def gather(self, rows: StepRows) -> StepInputs:
        """Each row's token, and where its K and V lie and go."""
        slots = self.slots
        attention = AttentionBatch(
            query_start=rows.query_start,
            block_tables=slots.block_tables[rows.sequence_slots, : rows.num_blocks],
            positions=rows.positions,
            kv_slots=slots.kv_slots(rows.slots, rows.positions),
        )
        input_ids = self.model.ops.gather_tokens(slots.tokens, rows.slots, rows.positions)
        return StepInputs(input_ids, attention, rows.sample_indices)

    def forward(self, input_ids: Tensor, attention: AttentionBatch) -> Tensor:
        """Hidden f32 [T, hidden]."""
        attention = self.model.ops.plan_attention(attention)
        return self.model.forward(input_ids, attention.positions, self.caches, self.layout, attention)

    def logits(self, hidden: Tensor, sample_indices: Tensor) -> Tensor:
        """f32 [R, V]."""
        if not len(sample_indices):
            return hidden.new_empty((0, self.model.config.vocab_size))
        return self.model.logits(self.model.ops.embed(sample_indices, hidden))

    def __call__(self, rows: StepRows) -> tuple[Tensor, Tensor]:
        """hidden f32 [T, hidden], logits f32 [R, V]."""
        inputs = self.gather(rows)
        hidden = self.forward(inputs.input_ids, inputs.attention)
        return hidden, self.logits(hidden, inputs.sample_indices)
